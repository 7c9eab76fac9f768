"""The mutations of a C++ source: places where a mistake of a kind that matters could be, each with the text that it
would have. Four kinds:

    wait      a wait, a fence or a record of an event is left out
    rollback  what undoes something after a failure is left out
    swap      two neighbouring arguments change places
    bound     a bound is off by one

Sources are read by a parser, so that a mutation is a statement or an expression as a whole.
"""

import dataclasses
import itertools
import re

import tree_sitter
import tree_sitter_cpp

KINDS = ("wait", "rollback", "swap", "bound")
LANGUAGE = tree_sitter.Language(tree_sitter_cpp.language())

# Names of what waits, or makes somebody else wait.
WAITS = re.compile(
    r"wait|synchroni[sz]e|settle|drain|^join$|come_after|comes_after|come_back_after|append_events|^record|notify|"
    r"end_doubt|end_reads|order_after|flush|lane_waits|end_copies|^check$"
)
# Names of what undoes something, or gives something back.
UNDOES = re.compile(
    r"undo|^give|give_back|drop|cancel|detach|disband|withdraw|erase|reset|destroy|pop_back|abandon|end_|release|"
    r"forget|stay_after|^free|clear|^end$|remove|untake|lose|repair|revert|unmap|unpin"
)
# Conditions of branches that run after a failure.
FAILURES = re.compile(r"\bok\(\)|fail|status|lost|error", re.IGNORECASE)
BOUNDS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
# Arguments that may have one type, as far as their names tell: most others would not compile.
NUMBERS = re.compile(
    r"(bytes|offset|begin|end|from|to|at|count|pages|first|last|place|address|used|free|number|position|piece|"
    r"wanted|least|most|before|after|until|limit|size|ns)_?$"
)


@dataclasses.dataclass(frozen=True)
class Mutation:
    file: str
    kind: str
    function: str  # the one that it is in
    begin: int  # bytes of the source
    end: int
    before: str
    after: str
    line: int

    def apply(self, source):
        """The mutated source, with as many lines as before."""
        lines = "\n" * (self.before.count("\n") - self.after.count("\n"))
        return source[: self.begin] + (self.after + lines).encode() + source[self.end :]

    def title(self):
        return f"{self.file}:{self.line} in {self.function}(): {self.kind}"

    def difference(self):
        return f"    - {one_line(self.before)}\n    + {one_line(self.after) or '(nothing)'}"


def one_line(text):
    return " ".join(text.split())


def text_of(node):
    return node.text.decode()


def called(node):
    """The name of the function that a call calls, without what it is a member of."""
    function = node.child_by_field_name("function")
    while function is not None and function.type in ("field_expression", "qualified_identifier", "template_function"):
        inner = function.child_by_field_name("field") or function.child_by_field_name("name")
        if inner is None:
            break
        function = inner
    return text_of(function) if function is not None else ""


def calls_in(node):
    if node.type == "lambda_expression":  # it runs at another time
        return
    if node.type == "call_expression":
        yield node
    for child in node.children:
        yield from calls_in(child)


def function_of(node):
    while node is not None:
        if node.type == "function_definition":
            declarator = node.child_by_field_name("declarator")
            while declarator is not None and declarator.type != "function_declarator":
                declarator = declarator.child_by_field_name("declarator") or next(
                    (child for child in declarator.children if "declarator" in child.type), None
                )
            if declarator is not None:
                return one_line(text_of(declarator.child_by_field_name("declarator")))
        node = node.parent
    return "?"


def runs_after_failure(node):
    """Whether the statement is in a branch that a failure takes."""
    while node is not None and node.type != "function_definition":
        parent = node.parent
        if parent is not None and parent.type == "catch_clause":
            return True
        if (
            parent is not None
            and parent.type == "if_statement"
            and node == parent.child_by_field_name("consequence")
            and FAILURES.search(text_of(parent.child_by_field_name("condition")))
        ):
            return True
        node = parent
    return False


def left_out(statement):
    """(before, after) of a statement without its call: a node becomes a text. None: it would not compile."""
    if statement.type == "expression_statement":
        return statement, ";"
    if statement.type == "return_statement":
        return statement, "return Status();"
    value = None
    if statement.type == "declaration" and re.match(r"(const )?Status\b", text_of(statement)):
        declarator = statement.child_by_field_name("declarator")
        value = declarator.child_by_field_name("value") if declarator is not None else None
    return (value, "Status()") if value is not None else None


def statements(node):
    """The statements of all functions that have a call as a whole, and declarations of a Status."""
    for child in node.children:
        yield from statements(child)
    if node.type in ("expression_statement", "return_statement", "declaration") and function_of(node) != "?":
        yield node


def omissions(root):
    for statement in statements(root):
        names = [called(call) for call in calls_in(statement)]
        replaced = left_out(statement)
        if replaced is None or not names:
            continue
        waits = any(WAITS.search(name) for name in names)
        undoes = waits or any(UNDOES.search(name) for name in names)
        if undoes and statement.type != "return_statement" and runs_after_failure(statement):
            yield ("rollback", *replaced)
        elif waits:
            yield ("wait", *replaced)


def is_number(node):
    return node.type in ("identifier", "field_expression") and NUMBERS.search(text_of(node))


def swaps(node):
    for child in node.children:
        yield from swaps(child)
    if node.type != "argument_list" or function_of(node) == "?":
        return
    arguments = [child for child in node.named_children if child.type != "comment"]
    for first, second in itertools.pairwise(arguments):
        if all(
            node.type in ("identifier", "field_expression") and NUMBERS.search(text_of(node))
            for node in (first, second)
        ):
            if text_of(first) == text_of(second):
                continue
            between = node.text[first.end_byte - node.start_byte : second.start_byte - node.start_byte].decode()
            yield "swap", (first, second), text_of(second) + between + text_of(first)


def bounds(node):
    for child in node.children:
        yield from bounds(child)
    if node.type != "binary_expression" or function_of(node) == "?":
        return
    operator = node.child_by_field_name("operator")
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if text_of(operator) in BOUNDS:
        yield "bound", operator, BOUNDS[text_of(operator)]
    elif text_of(operator) in "+-" and text_of(right) == "1":
        yield "bound", (left, right), text_of(left)


def find(file, source):
    """All mutations of a source, in its order."""
    root = tree_sitter.Parser(LANGUAGE).parse(source).root_node
    found = []
    for kind, place, after in [*omissions(root), *swaps(root), *bounds(root)]:
        first, last = place if isinstance(place, tuple) else (place, place)
        begin, end = first.start_byte, last.end_byte
        before = source[begin:end].decode()
        found.append(Mutation(file, kind, function_of(first), begin, end, before, after, first.start_point[0] + 1))
    return sorted(found, key=lambda mutation: (mutation.begin, mutation.end, mutation.kind))
