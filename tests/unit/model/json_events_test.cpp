// JSON as events: their order, texts that are not JSON, and texts that are too long to hold.
#include "model/json_events.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "model/byte_source.h"
#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

// Records the events and how deep they nest.
class Recorder final : public JsonEvents {
public:
    void start_object() override { open("{"); }
    void end_object() override { close("}"); }
    void start_array() override { open("["); }
    void end_array() override { close("]"); }
    void key(std::string_view name) override { log += std::string(name) + ":"; }
    void scalar(const JsonScalar& value) override {
        switch (value.kind) {
            case JsonKind::natural_number:
                log += std::to_string(value.number) + ",";
                break;
            case JsonKind::string:
                log += "'" + std::string(value.text) + "',";
                break;
            default:
                log += "<" + std::string(to_string(value.kind)) + ">,";
        }
    }

    std::string log;
    std::size_t depth = 0;
    std::size_t deepest = 0;

private:
    void open(const char* what) {
        log += what;
        deepest = std::max(deepest, ++depth);
    }
    void close(const char* what) {
        log += what;
        --depth;
    }
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

std::string events_of(const std::string& text) {
    MemorySource source("memory", text);
    Recorder recorder;
    read_json(source, 0, text.size(), "field", recorder);
    return recorder.log;
}

TEST(JsonEvents, ArriveInOrder) {
    EXPECT_EQ(events_of(R"({"a":[1,-2,0.5,null,true,"x\n"],"b":{}})"),
              "{a:[1,<a negative number>,<a number that is not a 64-bit integer>,<null>,<a boolean>,'x\n',]b:{}}");
    EXPECT_EQ(events_of("18446744073709551615"), "18446744073709551615,");
    EXPECT_EQ(events_of("18446744073709551616"), "<a number that is not a 64-bit integer>,");
    EXPECT_EQ(events_of(R"({"a":1,"a":2})"), "{a:1,a:2,}");
}

TEST(JsonEvents, ReadOnlyTheGivenRange) {
    const std::string text = "#####[1,2]#####";
    MemorySource source("memory", text);
    Recorder recorder;
    read_json(source, 5, 5, "field", recorder);
    EXPECT_EQ(recorder.log, "[1,2,]");
}

TEST(JsonEvents, CrossTheReadBuffer) {
    std::string text = "[";
    std::string wanted = "[";
    for (int i = 0; i < 100'000; ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(i * 7919);
        wanted += std::to_string(i * 7919) + ",";
    }
    EXPECT_EQ(events_of(text + "]"), wanted + "]");
}

TEST(JsonEvents, AHundredThousandLevelsNeedNoStack) {
    constexpr std::size_t levels = 100'000;
    const std::string text = std::string(levels, '[') + std::string(levels, ']');
    MemorySource source("memory", text);
    Recorder recorder;
    read_json(source, 0, text.size(), "field", recorder);
    EXPECT_EQ(recorder.deepest, levels);
    EXPECT_EQ(recorder.depth, 0U);
}

TEST(JsonEvents, ErrorsGiveTheOffsetInTheFileAndTheReason) {
    const std::string text = "xx[1,]";
    MemorySource source("memory", text);
    Recorder recorder;
    const ModelError error = error_of([&] { read_json(source, 2, 4, "some field", recorder); });
    EXPECT_EQ(error.file(), "memory");
    EXPECT_EQ(error.field(), "some field");
    EXPECT_EQ(error.message().rfind("is not valid JSON at byte 5: syntax error", 0), 0U) << error.what();
}

TEST(JsonEvents, ErrorsStayShortHoweverLongTheToken) {
    const ModelError error = error_of([] { events_of("\"" + std::string(1'000'000, 'x')); });
    EXPECT_LT(std::string(error.what()).size(), 400U);
}

TEST(JsonEvents, ATokenBeyond64MiBIsRefusedBeforeItIsHeld) {
    EndlessSource source(R"({"key)", 'x', std::uint64_t{1} << 40);
    Recorder recorder;
    const ModelError error = error_of([&] { read_json(source, 0, source.size(), "field", recorder); });
    EXPECT_NE(error.message().find("longer than 64 MiB"), std::string::npos) << error.what();
}

}  // namespace

}  // namespace stagehand::cli::model::test
