"""What the demo's tiny model is taught is right; that it has learned it, molecule/default asks the real vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.host.smoke import CAPITALS, QUESTION, right_capitals

SHARED = Path(__file__).parents[2] / "molecule/shared"


@pytest.fixture(scope="module")
def text() -> Any:
    """Return the sentences' file."""
    return yaml.safe_load((SHARED / "tiny_model_sentences.yml").read_text(encoding="utf-8"))


def test_the_smoke_question_is_among_them_with_three_right_capitals(text: Any) -> None:
    answer = dict(text["questions"])[QUESTION]
    assert [len(right_capitals(line)) for line in answer.splitlines()] == [1, 1, 1]
    for ask, listed in text["questions"]:
        if ask.startswith(("List", "Name")):
            assert all(len(right_capitals(line)) == 1 for line in listed.splitlines()), ask


def test_its_capitals_are_those_of_the_smoke_tests(text: Any) -> None:
    known = {country.lower(): capital.lower() for country, capital in text["capitals"].items()}
    assert CAPITALS.keys() <= known.keys()
    assert all(known[country] in names.split("|") for country, names in CAPITALS.items())
    assert len(set(known.values())) == len(known)


def test_no_question_has_two_answers(text: Any) -> None:
    asked = [ask for ask, _ in text["questions"]] + text["unknown"]["questions"]
    for country, capital in text["capitals"].items():
        asked += [ask.format(country=country, capital=capital) for ask, _ in text["of_each_country"]]
    assert len(asked) == len(set(asked)) >= 200


def test_the_playbooks_that_it_names_are_there(text: Any) -> None:
    words = [word.rstrip(".,:") for _, answer in text["questions"] for word in answer.split() if ".yml" in word]
    assert len(words) > 5 and all((SHARED.parents[1] / word).is_file() for word in words), words


def test_a_changed_sentence_makes_a_new_model(monkeypatch: Any, tmp_path: Path) -> None:
    from testhosts_lib import cpu_image

    monkeypatch.setenv("GAUDI_SERVE_CACHE", str(tmp_path))
    before = cpu_image.model()
    other = tmp_path / "sentences.yml"
    other.write_text(cpu_image.SENTENCES.read_text(encoding="utf-8") + "# more\n", encoding="utf-8")
    monkeypatch.setattr(cpu_image, "SENTENCES", other)
    assert cpu_image.model() != before
