"""LALR(1) grammar of the subset, and the constructs that are refused before parsing."""

GRAMMAR = r"""
start: "SELECT"i columns "FROM"i NAME clause alias [";"]
alias: [["AS"i] NAME]
columns: [NAME "."] "*" -> everything | item ("," item)*
item: [NAME "."] NAME

?clause: "MATCH_RECOGNIZE"i "(" partition order measures rows skip pattern define ")" -> fixed
    | "MATCH_RECOGNIZE_DYNAMIC"i "(" partition order measures options ")" -> dynamic
options: option ("," option)*
option: (NAME | TEXT) "=" setting
?setting: NAME ("." NAME)* -> name | TEXT -> text | INTEGER -> number | DECIMAL -> number

partition: ["PARTITION"i "BY"i NAME ("," NAME)*]
order: ["ORDER"i "BY"i NAME ["ASC"i] ("," NAME ["ASC"i])*]
measures: ["MEASURES"i measure ("," measure)*]
measure: expression "AS"i NAME
rows: ["ONE"i "ROW"i "PER"i "MATCH"i]
skip: ["AFTER"i "MATCH"i "SKIP"i target]
?target: "PAST"i "LAST"i "ROW"i -> skip_past_last
    | "TO"i "NEXT"i "ROW"i -> skip_to_next
    | "TO"i "FIRST"i NAME -> skip_to_first
    | "TO"i "LAST"i NAME -> skip_to_last
    | "TO"i NAME -> skip_to_last
pattern: "PATTERN"i "(" choice ")" ["WITHIN"i "INTERVAL"i TEXT unit]
unit: UNIT
choice: sequence ("|" sequence)*
sequence: factor+
factor: NAME [quantifier] -> variable | "(" choice ")" [quantifier] -> group
    | PERMUTE "(" sequence ("," sequence)* ")" [quantifier] -> permute
quantifier: count [RELUCTANT]
?count: "+" -> plus | "*" -> star | "?" -> maybe
    | "{" INTEGER "}" -> exactly | "{" INTEGER "," [INTEGER] "}" -> between
    | "{" "," INTEGER "}" -> upto
define: ["DEFINE"i definition ("," definition)*]
definition: NAME "AS"i expression

?expression: conjunction | conjunction ("OR"i conjunction)+ -> either
?conjunction: negation | negation ("AND"i negation)+ -> both
?negation: "NOT"i negation -> not_ | predicate
?predicate: sum
    | sum COMPARE sum -> compare
    | sum "=" sum -> equal
    | sum "IS"i "NULL"i -> is_null
    | sum "IS"i "NOT"i "NULL"i -> is_value
    | sum "IN"i "(" sum ("," sum)* ")" -> within
    | sum "BETWEEN"i sum "AND"i sum -> range
    | sum "LIKE"i TEXT -> like
    | sum "NOT"i "IN"i "(" sum ("," sum)* ")" -> not_within
    | sum "NOT"i "BETWEEN"i sum "AND"i sum -> not_range
    | sum "NOT"i "LIKE"i TEXT -> not_like
?sum: product | sum "+" product -> add | sum "-" product -> subtract
?product: unary | product "*" unary -> multiply | product "/" unary -> divide
    | product "%" unary -> modulo
?unary: value | "-" unary -> negative
?value: INTEGER -> number | DECIMAL -> number | TEXT -> text
    | "TRUE"i -> true | "FALSE"i -> false
    | NAME -> column | NAME "." NAME -> qualified
    | [FINALITY] FUNCTION "(" [argument] ["," INTEGER] ")" -> call
    | "(" expression ")" -> nested
?argument: NAME -> column | NAME "." NAME -> qualified | "*" -> rows_

FUNCTION.3: /(FIRST|LAST|PREV|SUM|COUNT|AVG|MIN|MAX|CLASSIFIER|MATCH_NUMBER)(?=\s*\()/i
FINALITY.3: /(FINAL|RUNNING)(?=\s+[A-Z_]+\s*\()/i
PERMUTE.3: /PERMUTE(?=\s*\()/i
RELUCTANT.3: /(?<=[+*?}])\?/
UNIT.2: /(MILLISECOND|SECOND|MINUTE|HOUR|DAY)S?\b/i
COMPARE: "<>" | "!=" | "<=" | ">=" | "<" | ">"
NAME: /[A-Za-z_][A-Za-z0-9_]*/ | /`[^`]+`/
TEXT: /'(?:[^']|'')*'/
DECIMAL.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+/
INTEGER: /[0-9]+/
COMMENT: /--[^\n]*/ | /\/\*(?:.|\n)*?\*\//
%ignore /\s+/
%ignore COMMENT
"""

REFUSED = {
    r"ALL\s+ROWS\s+PER\s+MATCH": "ALL ROWS PER MATCH",
    r"SUBSET\b": "SUBSET",
    r"NEXT\s*\(": "NEXT() (rows behind the current one)",
    r"\bJOIN\b": "JOIN",
    r"\bGROUP\s+BY\b": "GROUP BY",
    r"\bWHERE\b": "WHERE",
    r"\bUNION\b": "UNION",
    r"\bDESC\b": "ORDER BY … DESC",
    r"\bDISTINCT\b": "DISTINCT",
    r"\{-": "exclusion {- -}",
    r"\^": "the anchor ^",
    r"\$": "the anchor $",
}
"""Constructs that are refused by name anywhere outside of text literals and comments."""
