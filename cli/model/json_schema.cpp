// Feeds the event parser of nlohmann-json, which is iterative and keeps one bit per level, from a SequentialReader.
#include "json_schema.h"

#include <array>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

std::string_view to_string(JsonKind kind) {
    constexpr std::array<std::string_view, 9> names{
        "anything", "null",      "a boolean", "a number", "a negative number", "a number that is not a 64-bit integer",
        "a string", "an object", "an array"};
    return names[static_cast<std::size_t>(kind)];
}

// Compares the parser's events with the schema.
class Check final : public nlohmann::json_sax<nlohmann::json> {
public:
    Check(const JsonSchema& schema, Feed& feed, std::uint64_t offset) : schema_(schema), feed_(feed), offset_(offset) {}

    bool null() override {
        return scalar(JsonKind::null, [](const JsonSchema&) {});
    }
    bool boolean(bool) override {
        return scalar(JsonKind::boolean, [](const JsonSchema&) {});
    }
    bool number_integer(number_integer_t) override {
        return scalar(JsonKind::negative_number, [](const JsonSchema&) {});
    }
    bool number_unsigned(number_unsigned_t value) override {
        return scalar(JsonKind::natural_number, [&](const JsonSchema& place) { place.number(value); });
    }
    bool number_float(number_float_t, const string_t&) override {
        return scalar(JsonKind::fraction, [](const JsonSchema&) {});
    }
    bool string(string_t& value) override {
        return scalar(JsonKind::string, [&](const JsonSchema& place) { place.text(value); });
    }
    bool binary(binary_t&) override { return false; }  // not in JSON text
    bool key(string_t& name) override {
        mark();
        if (skipped_ == 0) member_ = &open_.back()->member(name);
        return true;
    }
    bool start_object(std::size_t) override { return start(JsonKind::object); }
    bool end_object() override { return end(); }
    bool start_array(std::size_t) override { return start(JsonKind::array); }
    bool end_array() override { return end(); }
    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
        throw ModelError(feed_.file, feed_.field,
                         "is not valid JSON at byte " + std::to_string(offset_ + (position == 0 ? 0 : position - 1)) +
                             ": " + reason_of(error));
    }

private:
    void mark() { feed_.last_event = feed_.reader.position(); }

    // What the next value may be.
    const JsonSchema& place() const {
        if (open_.empty()) return schema_;
        return open_.back()->item != nullptr ? *open_.back()->item : *member_;
    }

    void expect(const JsonSchema& place, JsonKind found) const {
        if (place.kind == found) return;
        const bool in_array = !open_.empty() && open_.back()->kind == JsonKind::array;
        throw ModelError(feed_.file, place.field(),
                         "must " + std::string(place.wanted) + (in_array ? ", but holds " : ", but is ") +
                             std::string(to_string(found)));
    }

    template <typename Use>
    bool scalar(JsonKind found, Use use) {
        mark();
        const JsonSchema& here = place();
        if (here.kind == JsonKind::anything || (here.may_be_null && found == JsonKind::null)) return true;
        expect(here, found);
        use(here);
        return true;
    }

    bool start(JsonKind found) {
        mark();
        const JsonSchema& here = place();
        if (here.kind == JsonKind::anything) {
            if (++skipped_ > max_skipped_depth)
                throw ModelError(feed_.file, here.field(),
                                 "is nested deeper than " + std::to_string(max_skipped_depth) + " levels");
            return true;
        }
        expect(here, found);
        if (here.begin) here.begin();
        open_.push_back(&here);
        return true;
    }

    bool end() {
        mark();
        if (skipped_ > 0) {
            --skipped_;
            return true;
        }
        const JsonSchema& ended = *open_.back();
        open_.pop_back();
        if (ended.end) ended.end();
        return true;
    }

    const JsonSchema& schema_;
    Feed& feed_;
    std::uint64_t offset_;
    std::vector<const JsonSchema*> open_;
    const JsonSchema* member_ = nullptr;  // of the innermost object
    std::uint32_t skipped_ = 0;           // depth inside a value that is skipped
};

}  // namespace

void read_json(ByteSource& source, std::uint64_t offset, std::uint64_t bytes, std::string_view field,
               const JsonSchema& schema) {
    Feed feed{SequentialReader(source, offset, bytes), source.name(), field, offset};
    Check check(schema, feed, offset);
    nlohmann::json::sax_parse(FeedIterator(&feed), FeedIterator(nullptr), &check);
}

}  // namespace stagehand::cli::model
