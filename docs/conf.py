"""Settings of Sphinx, which builds these pages as a site: `make docs`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "lib"), str(ROOT / "scripts")]
from reference_lib import messages, roles  # noqa: E402

# Pages that only the site has: they repeat the code, and the README.md of each role.
for path, text in {**messages.pages(ROOT), **roles.site_pages(ROOT)}.items():
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")

project = "gaudi-serve"
author = "The gaudi-serve developers"
extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
# A link to a heading that does not exist is an error; the names of headings are those that code forges use.
myst_heading_anchors = 5
myst_enable_extensions = ["attrs_inline"]
nitpicky = True
html_theme = "furo"
html_title = "gaudi-serve"
# The site loads nothing from elsewhere, and its search works from a disk.
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = r"\$ |# "
copybutton_prompt_is_regexp = True
language = "en"
highlight_language = "none"
