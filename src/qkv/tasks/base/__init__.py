"""The interface of tasks, the training config, and what several tasks share."""
