# SPDX-License-Identifier: MIT
"""Functions of programs with many objects: found by the names that lead to them, else when called."""

from __future__ import annotations

import loader
import pytest
import test_serve
from test_serve import UNSERVED, looked

serve = test_serve.serve  # a fixture

# More objects than are all looked at. Some notice when code of theirs runs.
MANY_OBJECTS = """
import functools, types
heap = [[] for _ in range(100000)]

ran = []
class Trap:
    def __getattribute__(self, name): ran.append(name)
    def __getattr__(self, name): ran.append(name)
    def __eq__(self, other): ran.append("eq")
    def __hash__(self): ran.append("hash"); return 1
    def __bool__(self): ran.append("bool"); return True
    def __len__(self): ran.append("len"); return 1
    def __iter__(self): ran.append("iter"); return iter(())
class Table(dict):
    def __iter__(self): ran.append("iter of a table")
    def items(self): ran.append("items")
    def __getitem__(self, key): ran.append("item")
class Instance:
    def __init__(self, value): self.value = value
    def method(self): pass
class Slotted:
    __slots__ = ("value",)
traps = [Trap(), Table(a=Trap()), Instance(Trap())]

def make(name):
    # Of no module that there is, so that only what holds it leads to it.
    scope = {"__name__": "made"}
    exec(f"def {name}(): pass", scope)
    return scope.pop(name)

def hidden(function):
    def wrapper():
        return function()
    return wrapper

class Meta(type):
    def of_meta(cls): pass
class Base:
    of_base = make("of_base")
class Class(Base, metaclass=Meta):
    of_class = make("of_class")
    of_static = staticmethod(make("of_static"))
    of_classmethod = classmethod(make("of_classmethod"))
    of_property = property(make("of_getter"), make("of_setter"))
    class Inner:
        of_inner = make("of_inner")
del Base
class Asked:
    __call__ = make("of_call")
asked = Instance(Asked())
del Asked
in_closure = hidden(make("in_closure"))
in_partial = functools.partial(make("in_partial"), 1)
in_cache = functools.lru_cache(make("in_cache"))
in_method = types.MethodType(make("in_method"), 1)
in_default = lambda function=make("in_default"): function
in_instance = Instance([Instance({"a": (make("in_instance"),)})])
in_slot = Slotted()
in_slot.value = make("in_slot")
in_table = {"a": [make("in_list")], "b": {"c": (make("in_tuple"),)}, "d": {make("in_set")}}
in_subclass = Table(a=make("in_subclass"))
in_attribute = hidden(None)
in_attribute.__wrapped__ = make("in_attribute")
deep = make("in_depth")
for _ in range(10):
    deep = [deep]
itself = Instance(make("in_itself"))
itself.itself = {"a": itself, "b": [itself]}
itself.__class__.first = itself

lost = [make(f"lost{i}") for i in range(200)]
"""
FOUND = {
    "of_base", "of_class", "of_static", "of_classmethod", "of_getter", "of_setter", "of_inner",
    "of_call", "in_closure", "in_partial", "in_cache", "in_method", "in_default", "in_instance",
    "in_slot", "in_list", "in_tuple", "in_set", "in_subclass", "in_attribute", "in_depth", "in_itself",
}


@pytest.fixture
def unserved(python, serve):
    if python.name.endswith("t"):
        pytest.skip("without a GIL all objects are looked at")
    text = UNSERVED.replace("\nfor line in sys.stdin:", MANY_OBJECTS + "\nfor line in sys.stdin:")
    served, (channel,) = serve(1, text)
    return served, channel


@pytest.fixture
def many(unserved):
    served, channel = unserved
    served.ask("server.start()")
    return served, channel


def test_names_lead_to_functions_and_no_code_of_the_program_runs(many):
    served, channel = many
    served.ask("ran.clear()")
    table = loader.Table(1)
    channel.begin(table, "*:*\n", look="later")
    channel.send({"op": "look"})
    names, modules = looked(channel)
    assert FOUND <= set(names), FOUND - set(names)
    assert {"f", "outer", "outer.<locals>.inner", "Instance.method", "Meta.of_meta"} <= set(names)
    assert {"hidden.<locals>.wrapper", "Trap.__eq__", "wraps"} <= set(names)
    assert len(names) == len(set(names)) or names.count("f") == 1
    assert served.ask("ran") == []
    # What no name leads to is not waited for, but found when it is called.
    assert "lost7" not in names
    assert modules
    table.arm()
    served.ask("lost[7]()")
    while "lost7" not in [one["name"] for one in channel.receive()["matched"]]:
        pass
    channel.send({"op": "detach"})
    while channel.receive()["op"] != "gone":
        pass


def test_a_line_without_a_function_is_worth_a_walk_of_all_objects(many):
    served, channel = many
    served.ask("sys.modules.setdefault('made', type(sys)('made')) and None")
    ready = channel.begin(loader.Table(2), "__main__:f\nmade:lost7\n")
    assert {one["name"] for one in ready["matched"]} == {"f", "lost7"}


def test_a_line_of_a_module_that_is_not_there_is_not(many):
    _, channel = many
    ready = channel.begin(loader.Table(2), "__main__:f\nmade:lost7\n")
    assert [one["name"] for one in ready["matched"]] == ["f"]


def test_lists_are_of_all_functions(many):
    _, channel = many
    channel.send({"op": "list"})
    names = set()
    while (message := channel.receive())["op"] == "functions":
        names |= {one["name"] for one in message["functions"]}
    assert FOUND | {f"lost{i}" for i in range(200)} <= names


def test_names_may_come_and_go_meanwhile(unserved):
    served, channel = unserved
    served.ask("exec(''.join(f'def n{i}(): pass\\n' for i in range(30000)), globals())")
    served.ask("server.start()")
    served.ask("exec('def churn():\\n    while not stop:\\n        i = len(globals())\\n"
               "        globals()[f\"c{i}\"] = globals().pop(f\"c{i - 1}\", f)\\n"
               "        setattr(Class, f\"c{i}\", f)\\n        delattr(Class, f\"c{i}\")\\n',"
               " globals())")
    served.ask("threading.Thread(target=churn, daemon=True).start()")
    channel.begin(loader.Table(1), "*:*\n", look="later")
    channel.send({"op": "look"})
    names, _ = looked(channel)
    assert sum(name.startswith("n") for name in names) > 20000
    served.ask("globals().update(stop=True)")
