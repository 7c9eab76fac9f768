#include "probe_runner.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace plugins_test {
namespace {

constexpr uid_t kNobody = 65534;

std::string from_environment(const char* name) {
    const char* const value = std::getenv(name);
    EXPECT_NE(value, nullptr) << name << " is not set";
    return value ? value : "";
}

// Makes only system calls after fork().
[[noreturn]] void start(const ProbeCall& call, const std::string& program, char** arguments, char** environment,
                        int output) {
    dup2(output, 1);
    if (!call.directory.empty() && chdir(call.directory.c_str()) != 0) _exit(120);
    if (call.as_nobody && (setgid(kNobody) != 0 || setuid(kNobody) != 0)) _exit(121);
    execve(program.c_str(), arguments, environment);
    _exit(122);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (std::string& text : texts) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
}

}  // namespace

std::string probe_program() { return from_environment("SH_TEST_PROBE"); }

std::string plugin_file(const std::string& name) {
    return from_environment("SH_TEST_PLUGINS") + "/stagehand-" + name + ".so";
}

ProbeResult run_probe(const ProbeCall& call) {
    const std::string program = call.program.empty() ? probe_program() : call.program;
    std::vector<std::string> arguments = {call.argv0.empty() ? program : call.argv0}, environment = call.environment;
    arguments.insert(arguments.end(), call.arguments.begin(), call.arguments.end());
    for (const char* name : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "LD_LIBRARY_PATH"}) {
        if (const char* value = std::getenv(name)) environment.push_back(std::string(name) + "=" + value);
    }
    std::vector<char*> argument_pointers = pointers(arguments), environment_pointers = pointers(environment);
    ProbeResult result;
    int ends[2];
    if (pipe(ends) != 0) return result;
    const pid_t child = fork();
    if (child == 0) start(call, program, argument_pointers.data(), environment_pointers.data(), ends[1]);
    close(ends[1]);
    char buffer[4096];
    for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;)
        result.output.append(buffer, static_cast<size_t>(count));
    close(ends[0]);
    int status = 0;
    if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
    std::istringstream lines(result.output);
    std::string line;
    if (std::getline(lines, line)) result.status = std::atoi(line.c_str());
    if (std::getline(lines, line)) result.user = static_cast<unsigned>(std::strtoul(line.c_str(), nullptr, 10));
    std::getline(lines, result.path);
    std::getline(lines, result.text);
    std::getline(lines, result.rest);
    return result;
}

Folder::Folder() {
    const char* const parent = std::getenv("TMPDIR");
    path_ = std::string(parent && *parent ? parent : "/tmp") + "/stagehand-plugins-XXXXXX";
    EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_;
    chmod(path_.c_str(), 0755);
}

Folder::~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

std::string Folder::folder(const std::string& name, mode_t mode) const {
    const std::string path = path_ + "/" + name;
    std::filesystem::create_directories(path);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
}

void Folder::copy(const std::string& from, const std::string& to, mode_t mode) {
    std::error_code error;
    std::filesystem::copy_file(from, to, error);
    EXPECT_FALSE(error) << from << ": " << error.message();
    EXPECT_EQ(chmod(to.c_str(), mode), 0);
}

std::string Folder::put_plugin(const std::string& folder, const std::string& name, mode_t mode) {
    const std::string path = folder + "/stagehand-" + name + ".so";
    copy(plugin_file(name), path, mode);
    return path;
}

}  // namespace plugins_test
