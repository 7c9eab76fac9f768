// Every misuse of table.json, through the C interface and through the owners of C++: the call has the status and the
// text of its row, writes nothing, and loses nothing.
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include <stagehand/error.hpp>

#include "calls.h"

namespace stagehand::test {
namespace {

const Json& table() {
    static const Json read = Json::parse(std::ifstream(STAGEHAND_MISUSE_TABLE));
    return read;
}

struct Binding {
    const char* name;
    const Calls& calls;
};

struct Case {
    const Binding* binding;
    Json row;
};
void PrintTo(const Case& the, std::ostream* out) { *out << the.row; }

// Whether `row` or a function of the table has a reason why the binding does not have it.
bool is_excluded(const Json& from, const std::string& binding) {
    const Json not_in = from.value("not_in", Json::object());
    for (const auto& [names, reason] : not_in.items())
        if ((" " + names + " ").find(" " + binding + " ") != std::string::npos) return true;
    return false;
}

// A row once for each value of its "each", which stands for "$".
std::vector<Json> variants(const Json& row) {
    if (!row.contains("each")) return {row};
    std::vector<Json> all;
    for (const Json& value : row["each"]) {
        std::string text = row.dump();
        const std::string mark = "\"$\"", with = value.dump();
        for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += with.size())
            text.replace(at, mark.size(), with);
        all.push_back(Json::parse(text));
    }
    return all;
}

std::vector<Case> cases() {
    static const Binding bindings[] = {{"c", c_calls()}, {"cpp", cpp_calls()}};
    std::vector<Case> all;
    for (const Binding& binding : bindings)
        for (const Json& row : table()["rows"])
            for (const Json& variant : variants(row))
                if (!is_excluded(row, binding.name)) all.push_back({&binding, variant});
    return all;
}

struct Result {
    sh_status status;
    std::string text;
    bool is_unchanged;
};

int32_t fail(void*, uint64_t, uint64_t, void*) { return 7; }
void do_nothing(void*) {}

class Misuse : public testing::TestWithParam<Case> {
protected:
    Misuse() {
        alignas(4096) static char memory[1 << 20];
        world_["memory"] = reinterpret_cast<uint64_t>(memory);
        world_["room"] = reinterpret_cast<uint64_t>(memory + sizeof memory / 2);
        world_["a fill that fails"] = reinterpret_cast<uint64_t>(fail);
        world_["a function"] = reinterpret_cast<uint64_t>(do_nothing);
    }
    ~Misuse() override {
        for (const Json& call : table()["end"])
            if (world_.contains(call[1].get<std::string>())) make(c_calls(), call);
    }
    Result make(const Calls& calls, const Json& call) {
        const Json values(call.begin() + 1, call.end());
        Arguments arguments(world_, values);
        try {
            const sh_status status = calls.at(call[0])(arguments);
            return {status, status < 0 ? last_error() : "", arguments.are_unchanged()};
        } catch (const Error& error) {
            return {error.status(), error.what(), arguments.are_unchanged()};
        }
    }
    void succeed(const Json& calls) {
        for (const Json& call : calls) {
            const Result result = make(c_calls(), call);
            ASSERT_GE(result.status, 0) << call << ": " << result.text;
        }
    }

    World world_ = interface().constants;
};

TEST_P(Misuse, IsRefused) {
    const auto& [binding, row] = GetParam();
    ASSERT_NO_FATAL_FAILURE(succeed(table()["world"]));
    ASSERT_NO_FATAL_FAILURE(succeed(row.value("setup", Json::array())));
    for (const Json& call : row["calls"]) {
        if (is_excluded(table()["functions"].value(call[0], Json::object()), binding->name)) continue;
        SCOPED_TRACE(call);
        const Result result = make(binding->calls, call);
        EXPECT_EQ(sh_status_string(result.status), "SH_ERROR_" + row["status"].get<std::string>()) << result.text;
        for (const Json& part : row.value("says", Json::array()))
            EXPECT_NE(result.text.find(part.is_string() ? part.get<std::string>() : part.dump()), std::string::npos)
                << part << ": " << result.text;
        EXPECT_TRUE(result.is_unchanged) << "the call has written to its arguments";
    }
    succeed(row.value("undo", Json::array()));
    succeed(row.value("works", table()["works"]));
}

INSTANTIATE_TEST_SUITE_P(Table, Misuse, testing::ValuesIn(cases()), [](const auto& info) {
    std::string name = info.param.binding->name + std::string("_") + info.param.row["name"].template get<std::string>();
    for (char& letter : name)
        if (!isalnum(static_cast<unsigned char>(letter))) letter = '_';
    return name + "_" + std::to_string(info.index);
});

TEST(MisuseTable, HasEveryFunctionAndNoReasonForWhatABindingHas) {
    std::set<std::string> called;
    for (const Json& row : table()["rows"])
        for (const Json& call : row["calls"]) called.insert(call[0]);
    for (const std::string& name : interface().functions) {
        if (name == "sh_last_error" || name == "sh_status_string" || name == "sh_version") continue;
        EXPECT_TRUE(called.contains(name)) << name << " is misused nowhere";
        EXPECT_TRUE(c_calls().contains(name)) << name;
        EXPECT_NE(cpp_calls().contains(name), is_excluded(table()["functions"].value(name, Json::object()), "cpp"))
            << "the owners have " << name << ", or table.json says why they have not";
    }
}

}  // namespace
}  // namespace stagehand::test
