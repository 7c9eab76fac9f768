// JSON from a file as a stream of events, in bounded memory: no tree, no recursion.
#pragma once

#include <cstdint>
#include <string_view>

#include "byte_source.h"

namespace stagehand::cli::model {

enum class JsonKind { null, boolean, natural_number, negative_number, fraction, string, object, array };

// "a string", "an object" and so on.
std::string_view to_string(JsonKind kind);

// A value that is neither an object nor an array.
struct JsonScalar {
    JsonKind kind = JsonKind::null;
    std::uint64_t number = 0;  // if natural_number; a number beyond 64 bits arrives as a fraction
    std::string_view text;     // if string: valid UTF-8, may hold NUL; invalid after the call
};

// Receives the events of a document in their order. Members may throw, which ends the reading.
class JsonEvents {
public:
    virtual ~JsonEvents() = default;
    virtual void start_object() = 0;
    virtual void end_object() = 0;
    virtual void start_array() = 0;
    virtual void end_array() = 0;
    virtual void key(std::string_view name) = 0;  // the receiver checks for duplicates
    virtual void scalar(const JsonScalar& value) = 0;
};

// Reads the one document that fills `bytes` bytes at `offset` (white space around it is allowed). What is not
// JSON is a ModelError on `field` that gives the byte's offset in the file and the reason; so is a single
// key, string, number or run of white space beyond 64 MiB.
void read_json(ByteSource& source, std::uint64_t offset, std::uint64_t bytes, std::string_view field,
               JsonEvents& events);

// Depth of nesting in a value that a reader does not know and skips; deeper is an error.
inline constexpr std::uint32_t max_skipped_depth = 64;

}  // namespace stagehand::cli::model
