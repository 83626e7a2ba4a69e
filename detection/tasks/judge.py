"""Tasks around questions: consulting the judge, and closing what nobody answered in time."""

from __future__ import annotations

from celery import shared_task

from detection import jobs
from detection.services import questions


@shared_task(name=jobs.JUDGE)
def ask_judge(question_id: str) -> None:
    """Consult the judge about a question; a second delivery finds nothing left to ask."""
    questions.ask_judge(question_id)


@shared_task(name=jobs.CLOSE_QUESTIONS)
def close_questions() -> None:
    """Close the questions whose time is over and that nobody has read since."""
    questions.close_due()
