"""Layer 0: the ctypes table compared with AMD's header, as libclang reads it.

Both sides are put into one plain form. A type is a word (``uint32``, ``bool``, ``struct hsa_agent_t``) or a tuple:
``("pointer", type)``, ``("function", result, *parameters)``. Integers keep width and sign; an enum is the integer that
the compiler chose for it. A pointer to nothing known is ``("pointer", "void")``.

Two ``void*`` that changed places are alike by type: the names of parameters, which are compared too, tell them apart.
What no comparison with a header can show is whether a function behaves as we think: that is for the other layers.
"""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from build_model import gcc
from clang import cindex
from clang.cindex import CursorKind, TypeKind

from c3lib.amd.table import Table

_SOURCE = '#include "hsa/hsa.h"\n#include "hsa/hsa_ext_amd.h"\n'
_SIGNED = {TypeKind.CHAR_S, TypeKind.SCHAR, TypeKind.SHORT, TypeKind.INT, TypeKind.LONG, TypeKind.LONGLONG}
_UNSIGNED = {TypeKind.CHAR_U, TypeKind.UCHAR, TypeKind.USHORT, TypeKind.UINT, TypeKind.ULONG, TypeKind.ULONGLONG}


class Field(NamedTuple):
    """One field of a struct, offset in bytes."""

    name: str
    offset: int
    type: Any


class Struct(NamedTuple):
    """Layout of a struct, size in bytes."""

    nbytes: int
    fields: tuple[Field, ...]


class Signature(NamedTuple):
    """What a function returns, and its parameters as pairs of name and type."""

    result: Any
    parameters: tuple[tuple[str, Any], ...]


class Header(NamedTuple):
    """All that a header declares: by name, and for AMD's extension also its version."""

    functions: dict[str, Signature]
    structs: dict[str, Struct]
    constants: dict[str, int]
    extension: tuple[int, int]


@cache
def read_header(include: Path) -> Header:
    """The header below ``include`` (which holds ``hsa/hsa.h``).

    Raises:
        NotObtained: there is no gcc, whose own headers (``stdint.h``) are needed.
        ValueError: it does not parse cleanly.
    """
    own = subprocess.run([gcc(), "-print-file-name=include"], capture_output=True, text=True, check=True).stdout.strip()
    unit = cindex.Index.create().parse(
        "table.c",
        args=[f"-I{include}", f"-isystem{own}", "-std=gnu11"],
        unsaved_files=[("table.c", _SOURCE)],
        options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,  # macros, for the version
    )
    if wrong := [str(found) for found in unit.diagnostics if found.severity >= cindex.Diagnostic.Error]:
        raise ValueError(f"the header in {include} does not parse: {wrong[0]}")
    functions, structs, constants, macros = {}, {}, {}, {}
    for cursor in unit.cursor.walk_preorder():
        if cursor.kind == CursorKind.FUNCTION_DECL:
            parameters = tuple((a.spelling, type_of_header(a.type)) for a in cursor.get_arguments())
            functions[cursor.spelling] = Signature(type_of_header(cursor.result_type), parameters)
        elif cursor.kind == CursorKind.ENUM_CONSTANT_DECL:
            constants[cursor.spelling] = cursor.enum_value
        elif cursor.kind == CursorKind.TYPEDEF_DECL and cursor.type.get_canonical().kind == TypeKind.RECORD:
            structs[cursor.spelling] = _struct_of_header(cursor.type)
        elif cursor.kind == CursorKind.MACRO_DEFINITION and "INTERFACE_VERSION" in cursor.spelling:
            macros[cursor.spelling] = int([token.spelling for token in cursor.get_tokens()][1])
    version = (macros["HSA_AMD_INTERFACE_VERSION_MAJOR"], macros["HSA_AMD_INTERFACE_VERSION_MINOR"])
    return Header(functions, structs, constants, version)


def _struct_of_header(kind: cindex.Type) -> Struct:
    fields = tuple(
        Field(field.spelling, field.get_field_offsetof() // 8, type_of_header(field.type))
        for field in kind.get_canonical().get_fields()
    )
    return Struct(kind.get_size(), fields)


def type_of_header(declared: cindex.Type) -> Any:
    """The plain form of a C type. Raises ValueError for a kind that the table has no use for."""
    kind = declared.get_canonical()
    if kind.kind == TypeKind.VOID:
        return "void"
    if kind.kind == TypeKind.BOOL:
        return "bool"
    if kind.kind == TypeKind.ENUM:
        return type_of_header(kind.get_declaration().enum_type)
    if kind.kind in _SIGNED | _UNSIGNED:
        return f"{'' if kind.kind in _SIGNED else 'u'}int{8 * kind.get_size()}"
    if kind.kind == TypeKind.RECORD:
        name = kind.spelling.removeprefix("const ").removeprefix("struct ")
        return f"struct {name.removesuffix('_s')}" + ("_t" if name.endswith("_s") else "")
    if kind.kind == TypeKind.POINTER:
        target = kind.get_pointee().get_canonical()
        if target.kind in (TypeKind.FUNCTIONPROTO, TypeKind.FUNCTIONNOPROTO):
            arguments = target.argument_types() if target.kind == TypeKind.FUNCTIONPROTO else ()
            return ("function", type_of_header(target.get_result()), *map(type_of_header, arguments))
        return ("pointer", type_of_header(target))
    return f"a C type of kind {kind.kind.name}"  # equal to nothing in the table


def type_of_table(kind: Any) -> Any:
    """The plain form of a ctypes type."""
    if kind is None:
        return "void"
    if kind is ctypes.c_bool:
        return "bool"
    if kind is ctypes.c_void_p:
        return ("pointer", "void")
    if kind is ctypes.c_char_p:
        return ("pointer", "int8")
    if issubclass(kind, ctypes.Structure):
        return f"struct {kind.__name__}"
    if hasattr(kind, "_argtypes_"):
        return ("function", type_of_table(kind._restype_), *map(type_of_table, kind._argtypes_))
    if isinstance(getattr(kind, "_type_", None), type):
        return ("pointer", type_of_table(kind._type_))
    return f"{'' if kind(-1).value == -1 else 'u'}int{8 * ctypes.sizeof(kind)}"


def differences(table: Table, header: Header) -> list[str]:
    """Where the table and the header disagree, one sentence each; names that the header lacks are :func:`absent`."""
    found = []
    for name, function in table.functions.items():
        if name in header.functions:
            parameters = tuple((key, type_of_table(kind)) for key, kind in function.parameters.items())
            found += _compare(name, Signature(type_of_table(function.result), parameters), header.functions[name])
    for struct in table.structs:
        name = struct.__name__
        if name in header.structs:
            fields = tuple(
                Field(field[0], getattr(struct, field[0]).offset, type_of_table(field[1])) for field in struct._fields_
            )
            found += _compare(f"struct {name}", Struct(ctypes.sizeof(struct), fields), header.structs[name])
    for name, value in table.constants.items():
        if name in header.constants:
            found += _compare(name, value, header.constants[name])
    return found


def _compare(name: str, ours: Any, theirs: Any) -> list[str]:
    return [] if ours == theirs else [f"{name}: the table says {ours}, the header {theirs}"]


def absent(table: Table, header: Header) -> set[str]:
    """Names of the table that the header does not have."""
    return (
        (set(table.functions) - set(header.functions))
        | ({struct.__name__ for struct in table.structs} - set(header.structs))
        | (set(table.constants) - set(header.constants))
    )
