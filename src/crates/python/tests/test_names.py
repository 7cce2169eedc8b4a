"""Names: the stubs describe the native module, and the asyncio classes have the methods of the blocking ones."""

from __future__ import annotations

import ast
import inspect
import unittest
from pathlib import Path
from typing import Any

import bowline
from bowline import _native

# Made for `await` and `async with`, which the blocking classes do without.
SPECIAL = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__", "__next__": "__anext__"}


def own_names(type_: type) -> set[str]:
    hidden = {"__module__", "__doc__", "__new__", "__dict__", "__weakref__", "__annotations__", "__firstlineno__"}
    return {name for name in vars(type_) if name not in hidden and not name.startswith("__static_attributes")}


class Stubs(unittest.TestCase):
    def test_stub_has_the_names_of_the_native_module(self) -> None:
        stub = Path(bowline.__file__).with_name("_native.pyi")
        tree = ast.parse(stub.read_text())
        described: dict[str, set[str]] = {}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                functions = (each for each in node.body if isinstance(each, ast.FunctionDef))
                described[node.name] = {function.name for function in functions}
            elif isinstance(node, ast.FunctionDef):
                described[node.name] = set()
        public = {name for name in dir(_native) if not name.startswith("_")}
        self.assertEqual(public, set(described))
        for name, methods in described.items():
            value = getattr(_native, name)
            if isinstance(value, type):
                actual = {method for method in vars(value) if not method.startswith("__")}
                self.assertEqual(actual, {method for method in methods if not method.startswith("__")}, name)

    def test_package_says_that_it_is_typed(self) -> None:
        self.assertTrue(Path(bowline.__file__).with_name("py.typed").exists())

    def test_every_public_name_is_listed(self) -> None:
        public = {name for name in vars(bowline) if not name.startswith("_") and name != "annotations"}
        self.assertEqual(public, set(bowline.__all__))


class Parity(unittest.TestCase):
    def test_asyncio_classes_have_the_same_methods(self) -> None:
        pairs = [name for name in bowline.__all__ if f"Async{name}" in bowline.__all__]
        self.assertGreater(len(pairs), 8)
        for name in pairs:
            blocking: type = getattr(bowline, name)
            asyncio: type = getattr(bowline, f"Async{name}")
            expected = {SPECIAL.get(method, method) for method in own_names(blocking)}
            self.assertEqual(own_names(asyncio), expected, name)
            for method in own_names(blocking):
                ours: Any = vars(blocking)[method]
                theirs: Any = vars(asyncio)[SPECIAL.get(method, method)]
                if inspect.isfunction(ours):
                    self.assertEqual(
                        list(inspect.signature(ours).parameters), list(inspect.signature(theirs).parameters), method
                    )

    def test_exceptions_say_their_effect(self) -> None:
        classes = [value for value in vars(bowline).values() if inspect.isclass(value) and issubclass(value, Exception)]
        self.assertGreater(len(classes), 20)
        for exception in classes:
            assert issubclass(exception, bowline.BowlineError), exception
            self.assertEqual(exception("text", "unknown", True).effect, "unknown")


if __name__ == "__main__":
    unittest.main()
