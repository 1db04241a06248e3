"""The objects of an AWX that runs these playbooks: templates, surveys, workflows, schedules, permissions, as code."""
