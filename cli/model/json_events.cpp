// Feeds the event parser of nlohmann-json, which is iterative and keeps one bit per level, from a SequentialReader.
#include "json_events.h"

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "error.h"
#include "sequential_reader.h"
#include "text.h"

namespace stagehand::cli::model {

namespace {

constexpr std::uint64_t max_token_bytes = std::uint64_t{64} << 20;

// The limit on the length of a token, because the parser keeps the characters of the token that it reads.
struct Feed {
    SequentialReader reader;
    const std::string& file;
    std::string_view field;
    std::uint64_t first = 0;
    std::uint64_t last_event = first;

    bool more() {
        if (reader.has_buffered()) return true;
        if (reader.position() - last_event > max_token_bytes) {
            throw ModelError(
                file, field,
                "one token or run of white space at byte " + std::to_string(last_event) + " is longer than 64 MiB");
        }
        return reader.more();
    }

    [[noreturn]] void refuse(const char* what) const {
        throw ModelError(file, field, "is not valid JSON at byte " + std::to_string(reader.position()) + ": " + what);
    }
};

// The input iterator from which the parser reads. An iterator without a feed is the end.
class FeedIterator {
public:
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = char;

    explicit FeedIterator(Feed* feed) : feed_(feed) {}

    // The parser would take a NUL as the end of the document and ignore the bytes behind it. It would also skip a byte
    // order mark, which no other reader of these files takes.
    char operator*() const {
        const char c = feed_->reader.peek();
        if (c == '\0') feed_->refuse("a NUL byte");
        if (c == '\xef' && feed_->reader.position() == feed_->first) feed_->refuse("a byte order mark");
        return c;
    }
    FeedIterator& operator++() {
        feed_->reader.step();
        return *this;
    }
    bool operator!=(const FeedIterator&) const { return feed_ != nullptr && feed_->more(); }
    bool operator==(const FeedIterator& other) const { return !(*this != other); }

private:
    Feed* feed_;
};

// The parser's message without its beginning, "[json.exception.parse_error.101] parse error at line 1, column 7: ". The
// reader's own message gives the place.
std::string reason_of(const nlohmann::json::exception& error) {
    std::string text = error.what();
    if (const auto at = text.find("] "); at != std::string::npos) text.erase(0, at + 2);
    if (text.rfind("parse error at ", 0) == 0) {
        if (const auto at = text.find(": "); at != std::string::npos) text.erase(0, at + 2);
    }
    return printable(text);
}

// Translates the parser's events into calls of JsonEvents.
class Bridge final : public nlohmann::json_sax<nlohmann::json> {
public:
    Bridge(JsonEvents& events, Feed& feed, std::uint64_t offset) : events_(events), feed_(feed), offset_(offset) {}

    bool null() override { return pass({JsonKind::null, 0, {}}); }
    bool boolean(bool) override { return pass({JsonKind::boolean, 0, {}}); }
    bool number_integer(number_integer_t) override { return pass({JsonKind::negative_number, 0, {}}); }
    bool number_unsigned(number_unsigned_t value) override { return pass({JsonKind::natural_number, value, {}}); }
    bool number_float(number_float_t, const string_t&) override { return pass({JsonKind::fraction, 0, {}}); }
    bool string(string_t& value) override { return pass({JsonKind::string, 0, value}); }
    bool binary(binary_t&) override { return false; }  // not in JSON text
    bool key(string_t& name) override {
        mark();
        events_.key(name);
        return true;
    }
    bool start_object(std::size_t) override {
        mark();
        events_.start_object();
        return true;
    }
    bool end_object() override {
        mark();
        events_.end_object();
        return true;
    }
    bool start_array(std::size_t) override {
        mark();
        events_.start_array();
        return true;
    }
    bool end_array() override {
        mark();
        events_.end_array();
        return true;
    }
    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
        throw ModelError(feed_.file, feed_.field,
                         "is not valid JSON at byte " + std::to_string(offset_ + (position == 0 ? 0 : position - 1)) +
                             ": " + reason_of(error));
    }

private:
    void mark() { feed_.last_event = feed_.reader.position(); }
    bool pass(const JsonScalar& value) {
        mark();
        events_.scalar(value);
        return true;
    }

    JsonEvents& events_;
    Feed& feed_;
    std::uint64_t offset_;
};

}  // namespace

std::string_view to_string(JsonKind kind) {
    switch (kind) {
        case JsonKind::null:
            return "null";
        case JsonKind::boolean:
            return "a boolean";
        case JsonKind::natural_number:
            return "a number";
        case JsonKind::negative_number:
            return "a negative number";
        case JsonKind::fraction:
            return "a number that is not a 64-bit integer";
        case JsonKind::string:
            return "a string";
        case JsonKind::object:
            return "an object";
        case JsonKind::array:
            return "an array";
    }
    return "a value";
}

void read_json(ByteSource& source, std::uint64_t offset, std::uint64_t bytes, std::string_view field,
               JsonEvents& events) {
    Feed feed{SequentialReader(source, offset, bytes), source.name(), field, offset};
    Bridge bridge(events, feed, offset);
    nlohmann::json::sax_parse(FeedIterator(&feed), FeedIterator(nullptr), &bridge);
}

}  // namespace stagehand::cli::model
