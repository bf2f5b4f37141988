"""The LALR(1) grammar, from the loosest operator to the tightest.

Rules define nesting only. The builder in `tree_builder` checks where a truth value or a number is
needed, so that ``(a) == 5`` and ``(a == 5)`` share one rule for parentheses.
"""

GRAMMAR = r"""
start: any

?any: all | all (OR all)+ -> disjunction
?all: not | not (AND not)+ -> conjunction
?not: predicate | NOT not -> negation
?predicate: bits
    | bits COMPARE bits -> comparison
    | bits IN bits -> membership
    | bits IN brackets -> membership
brackets: LSQB element (COMMA element)* RSQB
?element: number | STRING -> string | TRUE -> true | FALSE -> false
?number: INTEGER -> integer | FLOAT -> real | MINUS number -> minus | PLUS number -> plus

?bits: exclusive | bits PIPE exclusive -> arithmetic
?exclusive: both | exclusive CARET both -> arithmetic
?both: shifted | both AMP shifted -> arithmetic
?shifted: sum | shifted SHIFT sum -> arithmetic
?sum: product | sum PLUS product -> arithmetic | sum MINUS product -> arithmetic
?product: unary | product TIMES unary -> arithmetic | product DIVIDE unary -> arithmetic
?unary: value
    | MINUS unary -> minus
    | PLUS unary -> plus
    | TILDE unary -> invert

?value: INTEGER -> integer
    | FLOAT -> real
    | STRING -> string
    | TRUE -> true
    | FALSE -> false
    | NAME -> name
    | NAME LSQB index RSQB -> subscript
    | FUNCTION LPAR [bits (COMMA bits)*] RPAR -> call
    | LPAR any RPAR -> group
?index: INTEGER -> integer | MINUS INTEGER -> minus_index | PLUS INTEGER -> plus_index

%declare OR AND NOT COMPARE IN PIPE CARET AMP SHIFT PLUS MINUS TIMES DIVIDE TILDE
%declare LPAR RPAR LSQB RSQB COMMA INTEGER FLOAT STRING TRUE FALSE NAME FUNCTION
"""
