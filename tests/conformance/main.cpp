// The conformance suite: it tests what every backend must do by the comments of backend.h. --backend=SPEC (several
// times) or STAGEHAND_CONFORMANCE=SPEC;SPEC names the backends, and the default is the host backend. The program exits
// with 77 if none of the backends can be used here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backend_spec.h"
#include "fixture.h"
#include "plugins/backends.h"

namespace {

constexpr int kSkipped = 77;

bool add(const std::string& text) {
    conformance::BackendSpec spec;
    if (!conformance::parse_spec(text, &spec)) {
        std::fprintf(stderr, "'%s' is not NAME[:INDEX][,OPTION=VALUE...]\n", text.c_str());
        return false;
    }
    conformance::chosen_specs().push_back(spec);
    return true;
}

bool add_list(const std::string& list) {
    for (size_t begin = 0; begin <= list.size();) {
        const size_t end = std::min(list.find(';', begin), list.size());
        if (end > begin && !add(list.substr(begin, end - begin))) return false;
        begin = end + 1;
    }
    return true;
}

// Returns whether the backend can be used here, and prints the reason if it cannot.
bool is_available(const conformance::BackendSpec& spec) {
    const sh_backend* backend = nullptr;
    const stagehand::Status status = stagehand::plugins::find_backend(spec.name.c_str(), nullptr, &backend, nullptr);
    std::string reason = status.ok() ? "" : status.text();
    uint32_t count = 0;
    if (status.ok() && backend->probe(&count) < 0) reason = backend->last_error();
    if (status.ok() && reason.empty() && count <= spec.index) reason = "it has " + std::to_string(count) + " devices";
    if (!reason.empty()) std::fprintf(stderr, "%s cannot be used here: %s\n", spec.text.c_str(), reason.c_str());
    return reason.empty();
}

}  // namespace

int main(int argc, char** argv) {
    static constexpr char kOption[] = "--backend=";
    int kept = 1;
    for (int i = 1; i < argc; ++i) {
        if (std::strncmp(argv[i], kOption, sizeof kOption - 1) == 0) {
            if (!add(argv[i] + sizeof kOption - 1)) return 2;
        } else {
            argv[kept++] = argv[i];
        }
    }
    argc = kept;
    argv[argc] = nullptr;
    const char* const variable = std::getenv("STAGEHAND_CONFORMANCE");
    if (conformance::chosen_specs().empty() && variable && !add_list(variable)) return 2;
    if (conformance::chosen_specs().empty()) add("host");
    bool any = false;
    for (const conformance::BackendSpec& spec : conformance::chosen_specs()) any |= is_available(spec);
    if (!any) return kSkipped;
    testing::InitGoogleTest(&argc, argv);
    if (argc > 1) {
        std::fprintf(stderr, "unknown argument '%s'\n", argv[1]);
        return 2;
    }
    return RUN_ALL_TESTS();
}
