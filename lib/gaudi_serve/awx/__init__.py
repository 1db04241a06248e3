"""The AWX objects for these playbooks as code: templates, surveys, workflows, schedules, permissions."""
