"""`manage.py check_all`: linters, types, import rules and the suite. Listed here; run before Django is loaded."""

from loopguard_site.management.without_django import WithoutDjango


class Command(WithoutDjango):
    """Run every check that the pipeline runs."""

    name = "check_all"
    help = "Run every check that the pipeline runs; --no-tests leaves the suite out."
