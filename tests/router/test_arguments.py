"""What is said when a command line can't be used."""

import argparse

import pytest

from router.arguments import FLAGS, Command, Unusable, configuration_arguments, count, event_port, parsed, positive
from router.settings import settings


def some(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=count(1), default=4)
    parser.add_argument("--rate", type=positive)
    parser.add_argument("--events", type=event_port)


COMMANDS = {"serve": Command("serve", some, lambda _: 0), "check": Command("check", some, lambda _: 0)}


def test_arguments_of_the_command_that_was_asked_for():
    arguments = parsed(["serve", "--replicas", "7"], COMMANDS)
    assert (arguments.command, arguments.replicas, arguments.rate) == (COMMANDS["serve"], 7, None)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["srve"], "there is no command 'srve'; did you mean serve"),
        (["xyz"], "commands: serve, check"),
        (["serve", "--replica", "3"], "router serve does not know '--replica'; did you mean --replicas"),
        (["serve", "--zzz"], "see `router serve --help`"),
        (["serve", "stray"], "does not know 'stray'"),
        (["--zzz"], "router does not know '--zzz'"),
        (["serve", "--replicas", "x"], "invalid whole number value: 'x'"),
        (["serve", "--replicas", "0"], "0 is less than 1"),
        (["serve", "--rate", "-1"], "-1 is not more than 0"),
        (["serve", "--rate", "nan"], "nan is not more than 0"),
        (["serve", "--replicas"], "expected one argument"),
        (["serve", "--events", "65535"], "65535 is neither auto nor off nor a port with one after it"),
        (["serve", "--events", "on"], "on is neither auto nor off"),
    ],
)
def test_what_can_not_be_used_is_named(words, told):
    with pytest.raises(Unusable) as error:
        parsed(words, COMMANDS)
    assert told in str(error.value)


@pytest.mark.parametrize(("text", "port"), [("auto", 0), ("off", None), ("5557", 5557)])
def test_events_have_a_port_or_any_or_none(text, port):
    assert event_port(text) == port


def test_two_dashes_alone_ask_for_nothing():
    with pytest.raises(
        Unusable, match=r"say what to do|does not know '--'"
    ):  # argparse of 3.11 keeps them, later ones don't
        parsed(["--"], COMMANDS)


def test_flags_take_their_help_from_the_settings():
    parser = argparse.ArgumentParser()
    configuration_arguments(parser)
    told = " ".join(parser.format_help().split())
    described = {setting.name: setting for setting in settings()}
    for flag, name in FLAGS.items():
        assert flag in told
        assert described[name].description in told
