"""The tenants file: what it says, what is wrong with it, and whose key a key is."""

import tracemalloc

import pytest

from router.errors import ConfigError
from router.tenant_keys import Key, Quota, Register, Tenant, good_name, hashed, new_key, parsed, read

GOOD = f"""
[tenants.acme]
keys = [{{ hash = "{hashed("one")}" }}, {{ hash = "{hashed("two")}", expires = 2027-01-01T00:00:00Z }}]
salt_group = "all"
requests_per_minute = 600
in_flight = 4

[tenants."b.c-d_e"]
keys = []
"""
ENDS_S = 1798761600.0  # 2027-01-01T00:00:00Z


def test_what_the_file_says():
    register = parsed(GOOD.encode(), "f")
    acme = register.named("acme")
    assert acme == Tenant("acme", "all", Quota(600, None, 4))
    assert register.names == ("acme", "b.c-d_e")
    assert register.named("b.c-d_e") == Tenant("b.c-d_e")
    assert register.named("nobody") is None
    assert register.of_key(b"one", ENDS_S * 2) is acme
    assert register.of_key(b"two", ENDS_S - 1) is acme
    assert register.of_key(b"two", ENDS_S) is None
    assert register.of_key(b"three", 0.0) is None
    assert len(register) == 2
    assert hashed("one")[7:] not in repr(register)


def test_keys_are_compared_whole():
    ours, like = bytes(32), bytes(31) + b"\1"
    register = Register([Tenant("a"), Tenant("b")], [Key(ours, Tenant("a"), None), Key(like, Tenant("b"), None)])
    assert [key.digest for _, keys in register.told() for key in keys] == [ours, like]
    assert register.of_key(b"", 0.0) is None


def test_a_key_has_256_random_bits():
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {3 + 43}


BROKEN = {
    "half a table": ('[tenants.acme\nkeys = ["secret-words"', "is not TOML"),
    "half a string": ('[tenants.acme]\nsalt_group = "secret-words', "is not TOML"),
    "not text": (b"\xff\xfe\x00", "is not TOML"),
    "empty": ("", "no table .tenants."),
    "something else": ("[tenant.acme]\n", "no table .tenants."),
    "a table twice": ("[tenants.a]\n[tenants.a]\n", "is not TOML"),
    "a stranger at the top": ("[tenants.a]\n[limits]\n", "'limits' is not"),
    "a space": ('[tenants."a b"]\n', "can't name a tenant"),
    "a slash": ('[tenants."a/b"]\n', "can't name a tenant"),
    "a line end": ('[tenants."a\\nb"]\n', "can't name a tenant"),
    "a dash first": ("[tenants.-a]\n", "can't name a tenant"),
    "no name": ('[tenants.""]\n', "can't name a tenant"),
    "a long name": (f"[tenants.{'x' * 129}]\n", "can't name a tenant"),
    "no table": ("[tenants]\na = 1\n", "is no table"),
    "a limit of none": ("[tenants.a]\nin_flight = 0\n", "a.in_flight must be"),
    "a limit of yes": ("[tenants.a]\nin_flight = true\n", "a.in_flight must be"),
    "a limit in words": ('[tenants.a]\nin_flight = "9"\n', "a.in_flight must be"),
    "an unknown member": ("[tenants.a]\nin_fligth = 9\n", "has 'in_fligth'"),
    "a bad group": ('[tenants.a]\nsalt_group = "a b"\n', "a.salt_group: 'a b'"),
    "a number for a group": ("[tenants.a]\nsalt_group = 7\n", "a.salt_group: '7'"),
    "keys in words": ('[tenants.a]\nkeys = "secret-words"\n', "must be a list"),
    "a key itself": ('[tenants.a]\nkeys = [{ hash = "secret-words" }]\n', "is it a key itself"),
    "a bare key": ('[tenants.a]\nkeys = ["secret-words"]\n', "entry 1 must be"),
    "an end in words": (f'[tenants.a]\nkeys = [{{ hash = "{hashed("k")}", expires = "soon" }}]\n', "must be a date"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_can_not_be_used_says_why_and_quotes_no_key(name):
    text, told = BROKEN[name]
    with pytest.raises(ConfigError, match=told) as broken:
        parsed(text if isinstance(text, bytes) else text.encode(), "/etc/t.toml")
    assert "/etc/t.toml" in str(broken.value)
    assert "secret-words" not in str(broken.value)
    assert broken.value.__cause__ is None


def test_one_key_has_one_owner():
    entry = f'keys = [{{ hash = "{hashed("k")}" }}]\n'
    with pytest.raises(ConfigError, match=r"the same key belongs to 'a' and to 'b'.*rotate b"):
        parsed(f"[tenants.a]\n{entry}[tenants.b]\n{entry}".encode(), "f")
    with pytest.raises(ConfigError, match="belongs to 'a' and to 'a'"):
        parsed(f"[tenants.a]\nkeys = [{{ hash = '{hashed('k')}' }}, {{ hash = '{hashed('k')}' }}]\n".encode(), "f")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="router tenants add"):
        read(tmp_path / "t.toml")
    (tmp_path / "t.toml").write_text("\ufeff[tenants]\n", "utf-8")
    assert len(read(tmp_path / "t.toml")) == 0


@pytest.mark.parametrize("name", ["a", "A9", "x" * 128, "a.b-c_d", "7"])
def test_good_names(name):
    assert good_name(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "a\n", ".a", "ä", "a{b}", 'a"', None, 7, "x" * 129])
def test_bad_names(name):
    assert not good_name(name)


def test_tenants_cost_little_memory():
    tracemalloc.start()
    try:
        tenants = [Tenant(f"t{number}") for number in range(10_000)]
        register = Register(
            tenants, [Key(number.to_bytes(32, "big")[::-1], one, None) for number, one in enumerate(tenants)]
        )
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(register) == 10_000
    assert used < 10_000 * 1024
