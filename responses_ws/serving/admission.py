"""Who is asking, and whether they may."""

import msgspec

from responses_ws.engines.registry import registry
from responses_ws.protocol.errors import ModelNotFound


class Principal(msgspec.Struct, frozen=True):
    """Who is asking: a key within a project. The project is the owner of what is stored."""

    organization_id: int
    project_id: int
    api_key_id: int | None
    """None where the host project's own authentication stands behind it."""
    name: str = ""
    """For logs and the live view; never the key."""
    allowed_models: frozenset[str] = frozenset()
    """Empty: all."""

    def may_use(self, model: str) -> bool:
        """Aliases, asked for or allowed, count as what they stand for."""
        if not self.allowed_models or model in self.allowed_models:
            return True
        return registry.real_name(model) in map(registry.real_name, self.allowed_models)


def admit(principal: Principal, model: str) -> None:
    """Check the rights of this turn, on every turn of every door.

    Raises:
        ModelNotFound: the same answer as for a model that does not exist.
    """
    if not principal.may_use(model):
        raise ModelNotFound(model)
