"""Our protobuf file says the same as the official one, package and file name aside."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tinker.proto import tinker_public_pb2 as official_pb

from tinkex.wire import tinker_public_pb2 as our_pb


def file_of(module: Any) -> FileDescriptorProto:
    """The file's description with names relative to its package."""
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    prefix = f".{file.package}."
    for message in file.message_type:
        _shorten(message, prefix)
    return file


def _shorten(message: Any, prefix: str) -> None:
    for field in message.field:
        field.type_name = field.type_name.removeprefix(prefix)
    for nested in message.nested_type:
        _shorten(nested, prefix)


OURS, OFFICIAL = file_of(our_pb), file_of(official_pb)


def by_name(items: Any) -> dict[str, Any]:
    return {item.name: item for item in items}


def field_values(field: Any) -> dict[str, Any]:
    return {
        "number": field.number,
        "type": field.type,
        "label": field.label,
        "of": field.type_name,
        "optional": field.proto3_optional,
        "oneof": field.oneof_index if field.HasField("oneof_index") else None,
        "json": field.json_name or None,
        "default": field.default_value,
        "packed": field.options.packed if field.HasField("options") else None,
    }


def assert_same(ours: Any, official: Any) -> None:
    """Fields, oneofs, nested messages (map entries) and enums of one message."""
    assert [oneof.name for oneof in ours.oneof_decl] == [oneof.name for oneof in official.oneof_decl]
    ours_fields, official_fields = by_name(ours.field), by_name(official.field)
    assert {name: field_values(field) for name, field in ours_fields.items()} == {
        name: field_values(field) for name, field in official_fields.items()
    }
    assert ours.options.map_entry == official.options.map_entry
    nested, official_nested = by_name(ours.nested_type), by_name(official.nested_type)
    assert nested.keys() == official_nested.keys()
    for name, message in nested.items():
        assert_same(message, official_nested[name])
    assert list(ours.enum_type) == list(official.enum_type)
    assert list(ours.reserved_range) == list(official.reserved_range)


def test_the_syntax_is_the_same() -> None:
    assert OURS.syntax == OFFICIAL.syntax == "proto3"
    assert not OURS.dependency


def test_messages_and_enums_are_the_same() -> None:
    assert by_name(OURS.message_type).keys() == by_name(OFFICIAL.message_type).keys()
    assert len(OURS.message_type) == 23
    for name, message in by_name(OURS.message_type).items():
        assert_same(message, by_name(OFFICIAL.message_type)[name])
    assert by_name(OURS.enum_type).keys() == by_name(OFFICIAL.enum_type).keys()
    for name, enum in by_name(OURS.enum_type).items():
        official = by_name(OFFICIAL.enum_type)[name]
        assert [(each.name, each.number) for each in enum.value] == [
            (each.name, each.number) for each in official.value
        ]


def test_presence_is_the_same_at_run_time() -> None:
    for name, message in our_pb.DESCRIPTOR.message_types_by_name.items():
        official = official_pb.DESCRIPTOR.message_types_by_name[name]
        assert {field.name: field.has_presence for field in message.fields} == {
            field.name: field.has_presence for field in official.fields
        }


def test_both_live_in_one_process_under_their_own_names() -> None:
    assert our_pb.DESCRIPTOR.package != official_pb.DESCRIPTOR.package
    assert our_pb.DESCRIPTOR.name != official_pb.DESCRIPTOR.name
    assert our_pb.SampleResponse is not official_pb.SampleResponse


def test_the_proto_file_is_what_the_module_was_made_from(request: Any) -> None:
    source = request.config.rootpath / "src" / "tinkex" / "wire" / "tinker_public.proto"
    text = source.read_text()
    for message in OURS.message_type:
        assert f"message {message.name} " in text
        for field in message.field:
            assert f" {field.name} = {field.number};" in text
