"""Prices are taken over whole or not at all, and the second time nothing changes."""

import io
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from responses_ws.billing import ledger, price_import, price_sources
from responses_ws.billing.price_sources import PricesRefused, nano_of_price, read_csv
from responses_ws.models import ControlMessage, Journal, Price

from .rows import NOON, make_record

DAY = timedelta(days=1)


def table():
    """The standing prices as (component, currency units per million, from, to)."""
    rows = Price.objects.standing().order_by("component", "min_context", "valid_from")
    return [(row.component, row.nano_per_million / 10**9, row.valid_from, row.valid_to) for row in rows]


def take_over(text, now=NOON, **options):
    return price_import.take_over(read_csv(text.splitlines()), now, **{"apply": True, **options})


def day(number):
    return datetime(2026, 11, number, tzinfo=UTC)


@pytest.mark.parametrize(
    ("component", "price", "nano"),
    [
        pytest.param("input", "2.50", 2_500_000_000, id="for a million tokens"),
        pytest.param("input", "0.000000001", 1, id="the smallest"),
        pytest.param("input", "0", 0, id="free"),
        pytest.param("input", "1000000", 10**15, id="the largest"),
        pytest.param("tool_call", "25", 25_000 * 10**9, id="for a thousand calls"),
        pytest.param("tool_call", "1000000", 10**18, id="the largest of calls"),
    ],
)
def test_a_price_is_read_exactly(component, price, nano):
    assert nano_of_price(component, price) == nano


@pytest.mark.parametrize(
    ("component", "price", "problem"),
    [
        pytest.param("input", "x", "'x' is not a price", id="words"),
        pytest.param("input", "-1", "from 0 to", id="less than nothing"),
        pytest.param("input", "1000000.000000001", "from 0 to", id="too much"),
        pytest.param("tool_call", "1000000.1", "from 0 to", id="too much for calls"),
        pytest.param("input", "NaN", "from 0 to", id="not a number"),
        pytest.param("input", "0.0000000001", "more than 9 decimals", id="less than a nano"),
        pytest.param("tool_call", "0.0000000000001", "more than 12 decimals", id="less than a nano for calls"),
    ],
)
def test_what_is_no_price_is_refused(component, price, problem):
    with pytest.raises(ValueError, match=problem):
        nano_of_price(component, price)


def test_a_csv_is_read_with_all_its_columns():
    text = "Model, component,price,currency,service_tier,min_context,valid_from,valid_to\n"
    text += "m, input,2.5,EUR,flex,200000,2026-11-01,2026-12-01T10:00:00+02:00\nm,output,10,,,,,\n"

    dated, plain = read_csv(text.splitlines())

    assert (dated.where, dated.thing, dated.nano_per_million) == (
        "line 2",
        ("EUR", "m", "flex", "input", 200_000),
        2_500_000_000,
    )
    assert (dated.valid_from, dated.valid_to) == (day(1), datetime(2026, 12, 1, 8, tzinfo=UTC))
    assert (plain.thing, plain.valid_from, plain.valid_to) == (("USD", "m", "", "output", 0), None, None)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        pytest.param(
            "model,price,colour\nm,1,red\n",
            ["line 1: the column component is missing", "line 1: there is no column 'colour'"],
            id="columns",
        ),
        pytest.param("", ["the column model is missing", "component is missing", "price is missing"], id="empty"),
        pytest.param("model,component,price\n", ["there is no price in it"], id="only a header"),
        pytest.param("model,component,price,price\nm,input,1,2\n", ["the column price is there twice"], id="twice"),
        pytest.param(
            "model,component,price\nm,inputs,1\n,input,1\nm,output,cheap\nm,input\n",
            [
                "line 2: 'inputs' is none of input",
                "line 3: the model is empty",
                "line 4: 'cheap' is",
                "line 5: it has more",
            ],
            id="every bad line is named",
        ),
        pytest.param("model,component,price\nm,input,1,2\n", ["line 2: it has more or fewer cells"], id="more cells"),
        pytest.param("model,component,price,currency\nm,input,1,usd\n", ["'usd' is not a currency"], id="currency"),
        pytest.param("model,component,price,min_context\nm,input,1,-1\n", ["'-1' is not a number"], id="context"),
        pytest.param("model,component,price,valid_from\nm,input,1,soon\n", ["'soon' is neither a date"], id="date"),
        pytest.param(
            "model,component,price,valid_from\nm,input,1,2026-02-30\n", ["'2026-02-30' is neither"], id="30.2."
        ),
        pytest.param("model,component,price,valid_to\nm,input,1,2026-02-03\n", ["needs a valid_from"], id="no start"),
        pytest.param(
            "model,component,price,valid_from,valid_to\nm,input,1,2026-02-03,2026-02-03\n", ["ends before"], id="order"
        ),
        pytest.param("model,component,price\n" + "m" * 201 + ",input,1\n", ["more than 200 characters"], id="long"),
        pytest.param(
            f'model,component,price\nm,input,1\n"{"m" * 140_000}",input,1\n', ["line 3: field larger"], id="csv"
        ),
    ],
)
def test_bad_rows_are_named(text, problems):
    with pytest.raises(PricesRefused) as refused:
        read_csv(text.splitlines())

    told = refused.value.problems
    assert len(told) == len(problems)
    assert all(problem in said for problem, said in zip(problems, told, strict=True)), told


@pytest.mark.django_db
class TestTakingOver:
    def test_a_changed_price_ends_and_a_new_one_starts(self):
        take_over("model,component,price\nm,input,2\nm,output,8\n", NOON - DAY)
        ControlMessage.objects.all().delete()

        plan = take_over("model,component,price\nm,input,2\nm,output,9\n")

        assert table() == [
            ("input", 2, NOON - DAY, None),
            ("output", 8, NOON - DAY, NOON),
            ("output", 9, NOON, None),
        ]
        assert plan.lines() == [
            "- USD m output: 8.00 per million tokens, from 2026-11-28 12:00 to 2026-11-29 12:00: ends 2026-11-29 12:00",
            "+ USD m output: 9.00 per million tokens, from 2026-11-29 12:00",
        ]
        assert plan.unchanged == 1
        assert ControlMessage.objects.filter(kind="prices_changed").exists()

    def test_the_second_time_nothing_changes(self):
        text = "model,component,price,valid_from,min_context\nm,input,1,2026-11-01,\nm,input,2,2026-11-05,\n"
        text += "m,input,3,,\nm,input,4,2026-12-05,\nm,input,9,,1000\n"
        take_over(text)
        before = table()

        plan = take_over(text, NOON + DAY)

        assert not plan and plan.unchanged == 5
        assert table() == before
        assert before == [
            ("input", 1, day(1), day(5)),
            ("input", 2, day(5), NOON),
            ("input", 3, NOON, datetime(2026, 12, 5, tzinfo=UTC)),
            ("input", 4, datetime(2026, 12, 5, tzinfo=UTC), None),
            ("input", 9, NOON, None),
        ]

    def test_without_apply_nothing_is_written(self):
        plan = take_over("model,component,price\nm,input,2\n", apply=False)

        assert len(plan.added) == 1
        assert table() == []

    def test_what_is_planned_for_later_stays_planned(self):
        take_over("model,component,price,valid_from\nm,input,1,2026-11-01\nm,input,2,2026-12-01\n")

        take_over("model,component,price\nm,input,3\n")

        december = datetime(2026, 12, 1, tzinfo=UTC)
        assert table() == [("input", 1, day(1), NOON), ("input", 3, NOON, december), ("input", 2, december, None)]

    def test_an_unused_price_is_replaced_from_its_start(self):
        take_over("model,component,price,valid_from\nm,input,1,2026-11-10\n")

        plan = take_over("model,component,price,valid_from\nm,input,2,2026-11-10\n")

        assert table() == [("input", 2, day(10), None)]
        assert plan.lines()[0].endswith("never used, replaced")

    def test_a_used_price_is_corrected_only_by_who_says_so(self):
        take_over("model,component,price,valid_from\nm,input,1,2026-11-10\n")
        make_record(started_at=day(20))
        ledger.bill_batch()
        text = "model,component,price,valid_from\nm,input,2,2026-11-{}\n"

        for start in (10, 15, 20):
            with pytest.raises(PricesRefused, match="turns that started until 2026-11-20 00:00:00 were billed"):
                take_over(text.format(start))
        take_over(text.format(21))
        assert table() == [("input", 1, day(10), day(21)), ("input", 2, day(21), None)]

        plan = take_over(text.format(10), correct=True)

        assert table() == [("input", 2, day(10), day(21)), ("input", 2, day(21), None)]
        assert "it was wrong, and is withdrawn" in plan.lines()[0]
        assert Price.objects.exclude(withdrawn_at=None).get().is_used
        assert Journal.objects.get().lines.get(component="input").price.nano_per_million == 10**9

    def test_rows_for_one_thing_must_not_overlap(self):
        with pytest.raises(PricesRefused, match="line 3: it overlaps line 2"):
            take_over("model,component,price\nm,input,1\nm,input,2\n")
        with pytest.raises(PricesRefused, match="line 3: it overlaps line 2"):
            take_over(
                "model,component,price,valid_from,valid_to\nm,input,1,2026-11-01,2026-11-05\nm,input,2,2026-11-04,\n"
            )
        assert table() == []

    def test_a_period_in_the_middle_says_what_follows(self):
        take_over("model,component,price,valid_from\nm,input,1,2026-11-01\n")
        middle = "model,component,price,valid_from,valid_to\nm,input,2,2026-11-05,2026-11-08\n"

        with pytest.raises(PricesRefused, match="from 2026-11-08 00:00 on nothing would have a price"):
            take_over(middle)
        take_over(middle + "m,input,1,2026-11-08,\n")

        assert table() == [("input", 1, day(1), day(5)), ("input", 2, day(5), day(8)), ("input", 1, day(8), None)]

    def test_one_bad_thing_keeps_all_others_out(self):
        take_over("model,component,price,valid_from\nm,input,1,2026-11-10\n")
        make_record(started_at=day(20))
        ledger.bill_batch()
        before = table()

        with pytest.raises(PricesRefused):
            take_over("model,component,price,valid_from\nn,input,1,\nm,input,2,2026-11-12\nn,output,1,\n")

        assert table() == before


FROM_PACKAGE = {"now": timezone.now(), "markup": Decimal("1.25")}


def from_package(provider, *models, **options):
    pytest.importorskip("genai_prices")
    return price_sources.read_genai_prices(provider, models, **FROM_PACKAGE | options)


class TestPackage:
    def test_prices_of_the_package_come_with_a_markup(self):
        import genai_prices

        wanted, notes = from_package("openai", "gpt-5")

        usage = genai_prices.Usage(input_tokens=1_000_000, output_tokens=1_000_000)
        theirs = genai_prices.calc_price(usage, "gpt-5", provider_id="openai")
        by_component = {one.thing[3]: one for one in wanted if not one.thing[2]}
        assert by_component["input"].nano_per_million == int(theirs.input_price * 1_250_000_000)
        assert by_component["output"].nano_per_million == int(theirs.output_price * 1_250_000_000)
        assert by_component["cached_input"].nano_per_million < by_component["input"].nano_per_million
        assert all(one.thing[:2] == ("USD", "gpt-5") and one.valid_from is None for one in wanted)
        assert any("no component of ours" in note for note in notes)

    def test_prices_of_the_past_are_intervals_with_long_contexts(self):
        wanted, _ = from_package("anthropic", "claude-opus-4-6", with_history=True, markup=Decimal(1))

        steps = {
            (one.thing[3], one.thing[4], one.valid_from, one.valid_to): one.nano_per_million
            for one in wanted
            if one.thing[3] == "input" and not one.thing[2]
        }
        beginning, flat = datetime(2020, 1, 1, tzinfo=UTC), datetime(2026, 3, 13, tzinfo=UTC)
        assert steps == {
            ("input", 0, beginning, None): 5 * 10**9,
            ("input", 200_001, beginning, flat): 10 * 10**9,
        }

    @pytest.mark.parametrize(
        ("provider", "models", "options", "problem"),
        [
            pytest.param("nobody", ["x"], {}, "knows no provider 'nobody'", id="provider"),
            pytest.param("openai", ["x-*", "y"], {}, "no model of openai that is called x-\\* or y", id="model"),
            pytest.param("openai", ["gpt-5*"], {"rename": "mine"}, "models match: only one", id="one name for many"),
            pytest.param("deepseek", ["deepseek-chat"], {}, "depends on the time of day", id="time of day"),
        ],
    )
    def test_what_the_package_cannot_say_is_refused(self, provider, models, options, problem):
        with pytest.raises(PricesRefused, match=problem):
            from_package(provider, *models, **options)

    def test_without_the_package_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "genai_prices", None)

        with pytest.raises(PricesRefused, match=r"pip install 'responses-ws\[prices\]'"):
            price_sources.read_genai_prices("openai", ["gpt-5"], **FROM_PACKAGE)


def run(*args, stdin=""):
    out, err = io.StringIO(), io.StringIO()
    before, sys.stdin = sys.stdin, io.StringIO(stdin)
    try:
        call_command("responses_ws_import_prices", *args, stdout=out, stderr=err)
    finally:
        sys.stdin = before
    return out.getvalue()


@pytest.mark.django_db
class TestCommand:
    def test_the_command_shows_first_and_writes_when_told(self, tmp_path):
        file = tmp_path / "prices.csv"
        file.write_text("\ufeffmodel,component,price\nm,input,2.5\nm,tool_call,25\n", encoding="utf-8")

        shown = run(str(file))
        assert table() == []
        done = run(str(file), "--apply")
        again = run(str(file), "--apply")

        assert "+ USD m input: 2.50 per million tokens" in shown
        assert "+ USD m tool_call: 25.00 per thousand calls" in shown
        assert shown.endswith("Nothing was written: say --apply to do it.\n")
        assert done.endswith("2 new, 0 ended, 0 replaced, 0 as they were.\n")
        assert again == "0 new, 0 ended, 0 replaced, 2 as they were.\n"
        assert [(name, price) for name, price, *_ in table()] == [("input", 2.5), ("tool_call", 25_000)]

    def test_the_package_ends_what_it_has_no_more_but_for_calls(self):
        pytest.importorskip("genai_prices")
        header = "model,component,price,min_context,valid_from\n"
        take_over(header + "gpt-5,input,9,5000,2026-11-01\ngpt-5,tool_call,1,,2026-11-01\nm,input,1,7,2026-11-01\n")
        take_over(header + "gpt-5,output,9,5000,2027-11-01\n")

        run("--provider", "openai", "--model", "gpt-5", "--apply")
        again = run("--provider", "openai", "--model", "gpt-5", "--apply")

        assert " 0 ended, 0 replaced" in again and again.startswith("0 new")
        odd = Price.objects.get(model="gpt-5", min_context=5_000)
        assert odd.component == "input" and odd.valid_to is not None
        assert Price.objects.filter(component="tool_call", valid_to=None).count() == 1
        assert Price.objects.get(model="m").valid_to is None

    @pytest.mark.parametrize(
        ("args", "problem"),
        [
            pytest.param([], "name a CSV file, or a --provider", id="nothing"),
            pytest.param(["x.csv", "--provider", "openai"], "name a CSV file, or a --provider", id="both"),
            pytest.param(["/nowhere/x.csv"], "cannot be read", id="no file"),
            pytest.param(["-"], "Nothing was taken over.\nline 2: 'cheap'", id="bad row"),
            pytest.param(["--provider", "openai"], "say which models", id="no model"),
            pytest.param(["--provider", "openai", "--model", "x", "--markup", "0"], "a factor above 0", id="markup 0"),
            pytest.param(["--provider", "openai", "--model", "x", "--markup", "x"], "a factor above 0", id="no markup"),
        ],
    )
    def test_the_command_says_what_is_wrong(self, args, problem):
        with pytest.raises(CommandError, match=problem):
            run(*args, stdin="model,component,price\nm,input,cheap\n")
