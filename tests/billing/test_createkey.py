"""The command that makes the first key."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from responses_ws.models import ApiKey

pytestmark = pytest.mark.django_db


def createkey(*args):
    """Run the command; returns what it wrote to stdout and to stderr."""
    out, err = StringIO(), StringIO()
    call_command("responses_ws_createkey", *args, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_the_key_alone_is_on_stdout():
    out, err = createkey("laptop")

    key = ApiKey.objects.find(out.removesuffix("\n"))
    assert key is not None
    assert (key.name, str(key.project)) == ("laptop", "default / default")
    assert out.strip() not in err


def test_project_and_organisation_are_made_once():
    createkey("a", "--project", "chat", "--organization", "acme")
    createkey("b", "--project", "chat", "--organization", "acme")

    assert [str(key.project) for key in ApiKey.objects.all()] == ["acme / chat", "acme / chat"]
    assert ApiKey.objects.values("project").distinct().count() == 1


def test_a_given_value_becomes_the_key():
    out, err = createkey("demo", "--key", "sk-demo")

    assert out == "sk-demo\n"
    assert "short enough to guess" in err
    assert ApiKey.objects.find("sk-demo").redacted == "s…o"


def test_a_taken_value_is_refused():
    createkey("demo", "--key", "sk-demo")

    with pytest.raises(CommandError, match="an API key with this value exists already"):
        createkey("again", "--key", "sk-demo")

    assert ApiKey.objects.count() == 1


@pytest.mark.parametrize("value", ["", " sk-demo", "sk-dëmo", "sk\ndemo"])
def test_a_value_that_no_header_can_carry_is_refused(value):
    with pytest.raises(CommandError, match="printable ASCII"):
        createkey("demo", "--key", value)
