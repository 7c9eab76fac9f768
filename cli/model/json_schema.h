// JSON from a file, read by a schema in bounded memory: no tree, no recursion.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "byte_source.h"

namespace stagehand::cli::model {

enum class JsonKind { anything, null, boolean, natural_number, negative_number, fraction, string, object, array };

// What a document may hold at one place, and what becomes of it. The functions may throw, which ends the reading.
struct JsonSchema {
    JsonKind kind = JsonKind::anything;          // anything: it is skipped
    std::string_view wanted = {};                // for messages, behind "must": "be an array of numbers"
    std::function<std::string()> field = {};     // the place for messages
    std::function<void()> begin = {}, end = {};  // of an object or an array; may be absent
    std::function<const JsonSchema&(std::string_view name)> member = {};  // of an object; refuses what comes twice
    const JsonSchema* item = nullptr;                                     // of an array
    std::function<void(std::uint64_t value)> number = {};   // if natural_number; one beyond 64 bits is a fraction
    std::function<void(std::string_view value)> text = {};  // if string: valid UTF-8, may hold NUL
    bool may_be_null = false;
};

// Reads the one document that fills `bytes` bytes at `offset` (white space around it is allowed). What is not
// JSON is a ModelError on `field` that gives the byte's offset in the file and the reason; so is a single
// key, string, number or run of white space beyond 64 MiB. What the schema does not allow is one on the place's field.
void read_json(ByteSource& source, std::uint64_t offset, std::uint64_t bytes, std::string_view field,
               const JsonSchema& schema);

// Depth of nesting in a value that is skipped; deeper is an error.
inline constexpr std::uint32_t max_skipped_depth = 64;

}  // namespace stagehand::cli::model
