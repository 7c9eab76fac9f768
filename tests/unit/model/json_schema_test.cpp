// JSON by a schema: what it takes, texts that are not JSON, and texts that are too long to hold.
#include "model/json_schema.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "model/byte_source.h"
#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

// Arrays of arrays, to any depth.
class Nested {
public:
    Nested() = default;
    Nested(const Nested&) = delete;

    const JsonSchema& schema() const { return array_; }

    std::size_t depth = 0, deepest = 0;

private:
    const JsonSchema array_{.kind = JsonKind::array,
                            .wanted = "hold arrays",
                            .field = [] { return std::string("array"); },
                            .begin = [this] { deepest = std::max(deepest, ++depth); },
                            .end = [this] { --depth; },
                            .item = &array_};
};

// An object of numbers, texts, lists of numbers, and things that are skipped.
class Record {
public:
    Record() = default;
    Record(const Record&) = delete;

    const JsonSchema& schema() const { return object_; }

    std::string log;

private:
    const JsonSchema& member(std::string_view name) {
        log += std::string(name) + ":";
        return name == "number" ? number_ : name == "text" ? text_ : name == "list" ? list_ : skipped_;
    }

    const JsonSchema skipped_{.field = [] { return std::string("skipped"); }};
    const JsonSchema number_{.kind = JsonKind::natural_number,
                             .wanted = "be a number",
                             .field = [] { return std::string("number"); },
                             .number = [this](std::uint64_t value) { log += std::to_string(value) + ","; },
                             .may_be_null = true};
    const JsonSchema text_{.kind = JsonKind::string,
                           .wanted = "be a text",
                           .field = [] { return std::string("text"); },
                           .text = [this](std::string_view value) { log += "'" + std::string(value) + "',"; }};
    const JsonSchema list_{.kind = JsonKind::array,
                           .wanted = "be a list",
                           .field = [] { return std::string("list"); },
                           .begin = [this] { log += "["; },
                           .end = [this] { log += "]"; },
                           .item = &number_};
    const JsonSchema object_{.kind = JsonKind::object,
                             .wanted = "be an object",
                             .field = [] { return std::string("object"); },
                             .member = [this](std::string_view name) -> const JsonSchema& { return member(name); }};
};

// Delivers `head` and then one byte without end. Takes no memory.
class EndlessSource final : public ByteSource {
public:
    EndlessSource(std::string head, char filler, std::uint64_t size)
        : head_(std::move(head)), filler_(filler), size_(size) {}

    const std::string& name() const override { return name_; }
    std::uint64_t size() const override { return size_; }
    void read(std::uint64_t offset, std::span<char> to) override {
        std::fill(to.begin(), to.end(), filler_);
        for (std::size_t i = 0; i < to.size() && offset + i < head_.size(); ++i) {
            to[i] = head_[static_cast<std::size_t>(offset) + i];
        }
    }

private:
    std::string name_ = "endless";
    std::string head_;
    char filler_;
    std::uint64_t size_;
};

std::string log_of(const std::string& text) {
    MemorySource source("memory", text);
    Record record;
    read_json(source, 0, text.size(), "field", record.schema());
    return record.log;
}

TEST(JsonSchema, ValuesArriveInOrder) {
    EXPECT_EQ(log_of(R"({"list":[1,2],"text":"x\n","number":18446744073709551615,"text":"","number":null})"),
              "list:[1,2,]text:'x\n',number:18446744073709551615,text:'',number:");
}

TEST(JsonSchema, SkipsWhatItDoesNotKnow) {
    EXPECT_EQ(log_of(R"({"a":[1,{"number":[2]},-3],"b":{"text":{}},"c":0.5,"number":4})"), "a:b:c:number:4,");
    const std::string deep(64, '['), ends(64, ']');
    EXPECT_EQ(log_of(R"({"a":)" + deep + ends + "}"), "a:");
    const ModelError error = error_of([&] { log_of(R"({"a":[)" + deep); });
    EXPECT_EQ(error.field(), "skipped");
    EXPECT_EQ(error.message(), "is nested deeper than 64 levels");
}

TEST(JsonSchema, RefusesOtherKinds) {
    const auto message_of = [](const std::string& text) {
        const ModelError error = error_of([&] { log_of(text); });
        return error.field() + ": " + error.message();
    };
    EXPECT_EQ(message_of("[]"), "object: must be an object, but is an array");
    EXPECT_EQ(message_of("true"), "object: must be an object, but is a boolean");
    EXPECT_EQ(message_of(R"({"text":null})"), "text: must be a text, but is null");
    EXPECT_EQ(message_of(R"({"number":-1})"), "number: must be a number, but is a negative number");
    EXPECT_EQ(message_of(R"({"number":18446744073709551616})"),
              "number: must be a number, but is a number that is not a 64-bit integer");
    EXPECT_EQ(message_of(R"({"list":["x"]})"), "number: must be a number, but holds a string");
    EXPECT_EQ(message_of(R"({"list":{}})"), "list: must be a list, but is an object");
}

TEST(JsonSchema, AHundredThousandLevelsNeedNoStack) {
    constexpr std::size_t levels = 100'000;
    const std::string text = std::string(levels, '[') + std::string(levels, ']');
    MemorySource source("memory", text);
    Nested nested;
    read_json(source, 0, text.size(), "field", nested.schema());
    EXPECT_EQ(nested.deepest, levels);
    EXPECT_EQ(nested.depth, 0U);
}

TEST(JsonSchema, ErrorsGiveTheOffsetInTheFileAndTheReason) {
    const std::string text = R"(xx{"list":[1,]})";
    MemorySource source("memory", text);
    Record record;
    const ModelError error = error_of([&] { read_json(source, 2, text.size() - 2, "some field", record.schema()); });
    EXPECT_EQ(error.file(), "memory");
    EXPECT_EQ(error.field(), "some field");
    EXPECT_EQ(error.message().rfind("is not valid JSON at byte 13: syntax error", 0), 0U) << error.what();
}

TEST(JsonSchema, ErrorsStayShortHoweverLongTheToken) {
    const ModelError error = error_of([] { log_of("\"" + std::string(1'000'000, 'x')); });
    EXPECT_LT(std::string(error.what()).size(), 400U);
}

TEST(JsonSchema, ATokenBeyond64MiBIsRefusedBeforeItIsHeld) {
    EndlessSource source(R"({"key)", 'x', std::uint64_t{1} << 40);
    Record record;
    const ModelError error = error_of([&] { read_json(source, 0, source.size(), "field", record.schema()); });
    EXPECT_NE(error.message().find("longer than 64 MiB"), std::string::npos) << error.what();
}

}  // namespace

}  // namespace stagehand::cli::model::test
