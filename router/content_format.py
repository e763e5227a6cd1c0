"""Whether an engine passes a chat template plain strings or lists of parts, decided as vLLM decides it.

A template takes parts when it loops over a message's content: over `message.content` of a loop over the messages, or,
through a macro, over a parameter that some call fills with it. Names are followed through assignments, filters, tests
and slices, not through scopes. The one rule: what can't be followed counts as strings, as it does in the engine.
"""

from collections.abc import Iterator

from jinja2 import nodes


def takes_parts(tree: nodes.Template) -> bool:
    """Whether the parsed template wants `content` as a list of parts."""
    items = _message_names(tree)
    macros = list(tree.find_all(nodes.Macro))
    within = {id(loop): macro for macro in macros for loop in macro.find_all(nodes.For)}
    for loop in tree.find_all(nodes.For):
        if _is_content(loop.iter, items):
            return True
        if isinstance(loop.iter, nodes.Name):
            macro = within.get(id(loop))
            if macro is None and loop.iter.name == "content":
                return True
            if macro is not None and loop.iter.name in _filled(tree, macro, items):
                return True
    return False


def _message_names(tree: nodes.Template) -> set[str]:
    """What one message is called in the loops over all of them."""
    lists = ["messages"]
    for name in lists:  # grows while it is walked: assignments from assignments
        lists += [
            assign.target.name
            for assign in tree.find_all(nodes.Assign)
            if isinstance(assign.target, nodes.Name) and _is_name(assign.node, name) and assign.target.name not in lists
        ]
    return {
        loop.target.name
        for loop in tree.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and any(_is_name(loop.iter, name) for name in lists)
    }


def _filled(tree: nodes.Template, macro: nodes.Macro, items: set[str]) -> set[str]:
    """The macro's parameters that a call fills with a message's content."""
    filled = set()
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
            named = [(word.key, word.value) for word in call.kwargs if isinstance(word, nodes.Keyword)]
            placed = zip((argument.name for argument in macro.args), call.args, strict=False)
            filled |= {name for name, value in [*placed, *named] if _is_content(value, items)}
    return filled


def _inner(node: nodes.Node | None) -> Iterator[nodes.Node]:
    """The node under filters, tests and slices."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if node is not None:
        yield node


def _is_name(node: nodes.Node, name: str) -> bool:
    return any(isinstance(inner, nodes.Name) and inner.name == name for inner in _inner(node))


def _is_content(node: nodes.Node, items: set[str]) -> bool:
    for inner in _inner(node):
        if isinstance(inner, nodes.Getattr):
            named = inner.attr == "content"
        elif isinstance(inner, nodes.Getitem):
            named = isinstance(inner.arg, nodes.Const) and inner.arg.value == "content"
        else:
            return False
        return named and isinstance(inner.node, nodes.Name) and inner.node.name in items
    return False
