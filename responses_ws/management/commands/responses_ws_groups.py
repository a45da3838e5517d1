"""Make the groups of the office."""

from typing import Any

from django.contrib.auth.models import Group
from django.core.management.base import BaseCommand

from responses_ws.management.groups import GROUPS, permissions_of


class Command(BaseCommand):
    """Asked for, not done by migrations: nobody's groups change behind their back."""

    help = "Make the groups of the office, or give them what a new version has added."

    def handle(self, *_args: Any, **_options: Any) -> None:
        for name, about in GROUPS.items():
            group, _made = Group.objects.get_or_create(name=f"responses_ws {name}")
            held = permissions_of(name)
            # What was added by hand stays.
            group.permissions.add(*held)
            self.stdout.write(f"{group.name}: {len(held)} permissions. {about}")
