"""Expressions of Polars: whether the result for a row depends on that row alone.

Polars answers this (`Expr.meta`) without a schema. So it raises for selectors, Python functions and
expressions within lists and structs. In the serialized expression these are replaced by columns, and Polars
is asked again. If it still raises, the expression is refused: wrong output is worse than a false refusal.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

from crosscut.contracts.frames import polars_errors

_COLUMN = {"Column": "x"}
_OTHER_ROWS = "its result depends on the other rows of the batch, and batch boundaries are arbitrary"


def row_problem(expression: Any, schema: Any) -> str:
    """Return why `expression` does not compute each row from that row alone; "" if it does.

    Args:
        schema: Of the frame, a `polars.Schema`.
    """
    errors = polars_errors()
    try:
        rewriting = _Rewriting(schema)
        trees = [rewriting.of(json.loads(expression.meta.serialize(format="json")))]
        trees += rewriting.others
        if rewriting.problem:
            return _refusal(expression, rewriting.problem)
        for tree in trees:
            for part in _parts(_deserialized(tree)):
                if problem := _problem_of_part(part):
                    # Of a rewritten part the names are not those of the user.
                    named = part if tree == trees[0] and not rewriting.has_changed else expression
                    return _refusal(named, problem)
    except errors as error:
        found = str(error).partition("\n")[0]
        return (
            f"{expression!s:.200} can't be checked to compute each row from that row alone: "
            f"{type(error).__name__}: {found:.200}. Use other expressions, or map_batches"
        )
    return ""


def _refusal(expression: Any, why: str) -> str:
    return f"{expression!s:.200} does not compute each row from that row alone: {why}"


def _problem_of_part(part: Any) -> str:
    meta = part.meta
    if meta.is_literal():
        return ""
    if not meta.is_row_separable():
        return f"{_OTHER_ROWS}. Use an expression of single rows; pass format= to parse dates and times"
    if not meta.is_length_preserving() and not meta.is_scalar():
        return (
            "it changes the number of rows. Remove rows with Frame.filter, or make values null, as in "
            "pl.when(condition).then(value)"
        )
    return ""


def _parts(expression: Any) -> Iterator[Any]:
    """Yield an expression and its subexpressions.

    All of them are asked: Polars 2.1 says that `x - x.mean()` is row separable.
    """
    yield expression
    for one in expression.meta.pop():
        yield from _parts(one)


def _deserialized(tree: Any) -> Any:
    import polars

    return polars.Expr.deserialize(io.BytesIO(json.dumps(tree).encode()), format="json")


class _Rewriting:
    """Replaces, in a serialized expression, what Polars can't judge without a schema.

    Attributes:
        others: Further expressions to judge, which are not part of the result.
        problem: Why the expression is refused; "" if nothing was found.
        has_changed: The result differs from the expression of the user.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self.others: list[Any] = []
        self.problem = ""
        self.has_changed = False

    def of(self, node: Any) -> Any:
        """Return the rewritten tree of an expression, or of a part of one."""
        match node:
            case {"Literal": _}:
                return node
            case {"Selector": _} | {"Field": _}:
                return self._changed(_COLUMN)
            case {"StructEval": {"expr": expression, "evaluation": [*fields]}}:
                self.others += [self.of(one) for one in fields]
                return self._changed(self.of(expression))
            case {"Eval": {"expr": expression, "evaluation": evaluation}}:
                # The elements belong to one row. Types are checked within, and nothing else.
                others = list(self.others)
                self.of(evaluation)
                self.others = others
                return self._changed(self.of(expression))
            case {"AnonymousFunction": {"input": [first, *others], "options": {"flags": str(flags)}}}:
                if "ROW_SEPARABLE" not in flags:
                    self.problem = (
                        f"{_OTHER_ROWS}. Pass is_elementwise=True to map_batches if each result depends on "
                        f"its own row alone"
                    )
                self.others += [self.of(one) for one in others]
                return self._changed(self.of(first))
            case {"Function": {"input": [first], "function": {"StructExpr": {"SelectFields": _}}}}:
                return self._changed(self.of(first))
            case {"Function": {"input": [first, *others], "function": {"Sql": {"Binary": _}}}}:
                self.others += [self.of(one) for one in others]
                return self._changed(self.of(first))
            case {"Function": {"input": [_, choices], "function": {"Boolean": {"IsIn": _}}}}:
                self._check_choices("is_in", choices)
            case {"Function": {"input": [_, *values], "function": "Replace" | {"ReplaceStrict": _}}}:
                for choices in values[:2]:
                    self._check_choices("replace", choices)
            case {"Function": {"function": {"SetSortedFlag": _}}}:
                # Polars would skip rows that are not in the order that it was promised.
                self.problem = "rows of a batch need not be in order. Leave set_sorted out"
            case {"Function": {"input": [value], "function": "ToPhysical" | {"Hash": _}}}:
                self._check_codes(value)
            case {"Cast": {"expr": value, "dtype": {**kind}}} if _is_number(kind.get("Literal", "Int")):
                self._check_codes(value)
        if isinstance(node, dict):
            return {key: self.of(value) for key, value in node.items()}
        if isinstance(node, list) and not (node and isinstance(node[0], int)):
            return [self.of(one) for one in node]
        return node

    def _changed(self, node: Any) -> Any:
        self.has_changed = True
        return node

    def _check_choices(self, method: str, choices: Any) -> None:
        """Refuse a column of single values: Polars uses those of all rows."""
        if isinstance(choices, dict) and "Literal" in choices:
            return
        kinds = self._kinds_of(choices)
        if kinds is None or not all(one.is_nested() for one in kinds):
            self.problem = (
                f"{method} uses the values of all rows of a column, so {_OTHER_ROWS}. Pass a list of values"
            )

    def _check_codes(self, value: Any) -> None:
        """A process numbers the values of a Categorical in the order in which it meets them."""
        kinds = self._kinds_of(value)
        if kinds is None:
            # Within lists and structs.
            kinds = [one for one in self._schema.values() if one.is_nested()]
        if any("Categorical" in repr(one) for one in kinds):
            self.problem = (
                "the numbers of Categorical values differ between processes. Cast to String or an Enum first"
            )

    def _kinds_of(self, tree: Any) -> list[Any] | None:
        """Return the types of the columns of an expression; None if it has none by itself."""
        import polars

        try:
            kinds: list[Any] = polars.DataFrame(schema=self._schema).select(_deserialized(tree)).dtypes
        except polars_errors():
            return None
        return kinds


def _is_number(kind: Any) -> bool:
    """Tell whether a serialized type is, or contains, numbers."""
    if isinstance(kind, str):
        return kind.lstrip("U").startswith(("Int", "Float"))
    if isinstance(kind, dict):
        return "Enum" not in kind and any(map(_is_number, kind.values()))
    return isinstance(kind, list) and any(map(_is_number, kind))
