"""`manage.py test`: runs the suite. Listed here; run before Django is loaded."""

from loopguard_site.management.without_django import WithoutDjango


class Command(WithoutDjango):
    """Run the suite."""

    name = "test"
    help = "Run the suite on embedded servers; arguments are those of pytest."
