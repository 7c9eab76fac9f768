// Runs plugin-probe in an environment that the test chooses, and makes folders for plugins.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace plugins_test {

struct ProbeResult {
    int exit_code = -1;
    int status = 0;
    unsigned user = 0;
    std::string path;
    std::string text;
    std::string rest;    // what follows
    std::string output;  // the whole output
};

struct ProbeCall {
    std::string program = {};  // empty: plugin-probe as it was built
    std::string argv0 = {};    // empty: the same
    std::vector<std::string> arguments = {};
    std::vector<std::string> environment = {};  // "NAME=value"; nothing else is passed on but what sanitizers need
    std::string directory = {};                 // empty: where the test is
    bool as_nobody = false;                     // gives up root before it starts the program
};

ProbeResult run_probe(const ProbeCall& call);

// A folder that only this user may enter. It is removed at the end.
class Folder {
public:
    Folder();
    ~Folder();
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    const std::string& path() const { return path_; }
    // Makes a folder inside this one.
    std::string folder(const std::string& name, mode_t mode = 0755) const;
    // Copies a plugin of the tests into a folder, under its own name. Returns the path of the copy.
    static std::string put_plugin(const std::string& folder, const std::string& name, mode_t mode = 0755);
    static void copy(const std::string& from, const std::string& to, mode_t mode);

private:
    std::string path_;
};

// Returns the path of the built program, from the environment variable SH_TEST_PROBE.
std::string probe_program();
// Returns the path of a built plugin of the tests, from SH_TEST_PLUGINS.
std::string plugin_file(const std::string& name);

}  // namespace plugins_test
