// The search for plugins: its places, refused plugins and the reasons, and the error texts.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fstream>

#include <stagehand/base.h>

#include "probe_runner.h"

namespace plugins_test {
namespace {

std::string search_in(const std::string& folders) { return "STAGEHAND_BACKEND_PATH=" + folders; }

ProbeResult find_in(const std::string& folders, const std::string& name) {
    return run_probe({.arguments = {name}, .environment = {search_in(folders)}});
}

// Expects that the backend is refused with this status, and that the text has all of these words.
void expect_refusal(const ProbeResult& result, int status, const std::vector<std::string>& words) {
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_EQ(result.status, status) << result.output;
    for (const std::string& word : words)
        EXPECT_NE(result.text.find(word), std::string::npos) << word << " is not in: " << result.text;
}

TEST(Loader, FindsAPluginInTheVariablesFolders) {
    Folder folder;
    const std::string first = folder.folder("first"), second = folder.folder("second");
    const std::string file = Folder::put_plugin(second, "good");
    const ProbeResult result = find_in(first + "::" + second, "good");
    EXPECT_EQ(result.status, SH_OK) << result.output;
    EXPECT_EQ(result.path, file);
    EXPECT_EQ(result.rest, "clock=1 size=1");
}

TEST(Loader, FindsBuiltInBackendsWithoutLooking) {
    for (const char* name : {"host", "sim"}) {
        const ProbeResult result = find_in("/no/such/folder", name);
        EXPECT_EQ(result.status, SH_OK) << result.output;
        EXPECT_EQ(result.path, "");
    }
}

TEST(Loader, MissingPluginsListWhatWasTried) {
    Folder folder;
    expect_refusal(find_in(folder.path() + ":/no/such/folder", "good"), SH_ERROR_NOT_FOUND,
                   {"'good'", folder.path() + "/stagehand-good.so (No such file",
                    "/no/such/folder/stagehand-good.so (No such file"});
}

TEST(Loader, NamesCannotLeadElsewhere) {
    Folder folder;
    const std::string inner = folder.folder("inner");
    Folder::put_plugin(folder.path(), "good");
    for (const char* name :
         {"x/../../stagehand-good", "../good", "", "Good", "good.so", "a-name-that-is-much-too-long-to-be-one"}) {
        expect_refusal(find_in(inner, name), SH_ERROR_NOT_FOUND, {"not a valid backend name"});
    }
}

TEST(Loader, FilesThatAreNotLibrariesAreRefused) {
    Folder folder;
    std::ofstream(folder.path() + "/stagehand-text.so") << "this is not a library";
    expect_refusal(find_in(folder.path(), "text"), SH_ERROR_BACKEND_LOAD, {"stagehand-text.so", "'text'"});
    folder.folder("stagehand-folder.so");
    expect_refusal(find_in(folder.path(), "folder"), SH_ERROR_BACKEND_LOAD, {"not a regular file"});
}

struct Broken {
    const char* name;
    std::vector<std::string> words;
};
void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.name; }

class BrokenPlugin : public testing::TestWithParam<Broken> {};

TEST_P(BrokenPlugin, IsRefusedInWords) {
    Folder folder;
    const std::string file = Folder::put_plugin(folder.path(), GetParam().name);
    std::vector<std::string> words = GetParam().words;
    words.push_back(file);
    expect_refusal(find_in(folder.path(), GetParam().name), SH_ERROR_BACKEND_LOAD, words);
    expect_refusal(run_probe({.arguments = {GetParam().name, file}}), SH_ERROR_BACKEND_LOAD, words);
}

INSTANTIATE_TEST_SUITE_P(Loader, BrokenPlugin,
                         testing::Values(Broken{"wrongversion", {"version 2", "needs version 1"}},
                                         Broken{"refusing", {"does not support version 1", "SH_ERROR_UNSUPPORTED"}},
                                         Broken{"lacking", {"lacks the required member fill"}},
                                         Broken{"short", {"64 bytes"}},
                                         Broken{"misnamed", {"'another'", "not 'misnamed'"}},
                                         Broken{"nameless", {"name"}}, Broken{"notable", {"returned no table"}},
                                         Broken{"noquery", {"does not export sh_backend_query"}},
                                         Broken{"asking", {"SH_ERROR_INVALID_STATE"}}),
                         [](const auto& parameter) { return parameter.param.name; });

TEST(Loader, OptionalMembersMayBeLeftOut) {
    Folder folder;
    Folder::put_plugin(folder.path(), "requiredonly");
    const ProbeResult result = find_in(folder.path(), "requiredonly");
    EXPECT_EQ(result.status, SH_OK) << result.output;
    EXPECT_EQ(result.rest, "clock=0 size=1");  // its clock lies beyond the size that it gives
}

TEST(Loader, TablesMayHaveGrown) {
    Folder folder;
    Folder::put_plugin(folder.path(), "larger");
    const ProbeResult result = find_in(folder.path(), "larger");
    EXPECT_EQ(result.status, SH_OK) << result.output;
    EXPECT_EQ(result.rest, "clock=1 size=1");
}

TEST(Loader, ABrokenPluginDoesNotHideAWholeOne) {
    Folder folder;
    const std::string first = folder.folder("first"), second = folder.folder("second");
    std::ofstream(first + "/stagehand-good.so") << "broken";
    const std::string file = Folder::put_plugin(second, "good");
    const ProbeResult result = find_in(first + ":" + second, "good");
    EXPECT_EQ(result.status, SH_OK) << result.output;
    EXPECT_EQ(result.path, file);
}

TEST(Loader, AnExplicitPathIsTheOnlyOneTried) {
    Folder folder;
    const std::string searched = folder.folder("searched"), named = folder.folder("named");
    Folder::put_plugin(searched, "good");
    const std::string file = Folder::put_plugin(named, "good");
    ProbeResult result = run_probe({.arguments = {"good", file}, .environment = {search_in(searched)}});
    EXPECT_EQ(result.status, SH_OK) << result.output;
    EXPECT_EQ(result.path, file);
    result = run_probe({.arguments = {"good", named + "/missing.so"}, .environment = {search_in(searched)}});
    expect_refusal(result, SH_ERROR_BACKEND_LOAD, {named + "/missing.so", "No such file"});
    EXPECT_EQ(result.text.find(searched), std::string::npos) << result.text;
}

TEST(Loader, RelativePathsAreRefused) {
    Folder folder;
    Folder::put_plugin(folder.path(), "good");
    for (const char* path : {"stagehand-good.so", "./stagehand-good.so", ""}) {
        expect_refusal(run_probe({.arguments = {"good", path}, .directory = folder.path()}), SH_ERROR_INVALID_ARGUMENT,
                       {"not absolute"});
    }
    expect_refusal(
        run_probe({.arguments = {"good"}, .environment = {search_in(".:plugins")}, .directory = folder.path()}),
        SH_ERROR_NOT_FOUND, {". (ignored, because it is not", "plugins (ignored, because it is not"});
}

TEST(Loader, TheCurrentDirectoryIsNotSearched) {
    Folder folder;
    Folder::put_plugin(folder.path(), "good");
    Folder::put_plugin(folder.folder("spi-1"), "good");
    Folder::put_plugin(folder.folder("stagehand/spi-1"), "good");
    for (const char* argv0 : {"", "plugin-probe", "./plugin-probe"}) {
        const ProbeResult result = run_probe({.argv0 = argv0, .arguments = {"good"}, .directory = folder.path()});
        expect_refusal(result, SH_ERROR_NOT_FOUND, {"tried /"});
        EXPECT_EQ(result.text.find(folder.path()), std::string::npos) << result.text;
    }
}

TEST(Loader, LooksBesideTheLibrary) {
    for (const char* inner : {"spi-1", "stagehand/spi-1"}) {
        Folder folder;
        const std::string program = folder.path() + "/program";
        Folder::copy(probe_program(), program, 0755);
        const std::string file = Folder::put_plugin(folder.folder(inner), "good");
        const ProbeResult result = run_probe({.program = program, .arguments = {"good"}});
        EXPECT_EQ(result.status, SH_OK) << result.output;
        EXPECT_EQ(result.path, file);
        // This also holds if the program was started by a path that is valid only in another folder.
        const ProbeResult relative =
            run_probe({.program = program, .argv0 = "program", .arguments = {"good"}, .directory = "/"});
        EXPECT_EQ(relative.path, file) << relative.output;
    }
}

TEST(Loader, TheVariableReplacesTheOtherFolders) {
    Folder folder;
    const std::string program = folder.path() + "/program", other = folder.folder("other");
    Folder::copy(probe_program(), program, 0755);
    const std::string file = Folder::put_plugin(folder.folder("spi-1"), "good");
    const ProbeResult result =
        run_probe({.program = program, .arguments = {"good"}, .environment = {search_in(other)}});
    expect_refusal(result, SH_ERROR_NOT_FOUND, {other});
    EXPECT_EQ(result.text.find("spi-1"), std::string::npos) << result.text;
    const ProbeResult empty = run_probe({.program = program, .arguments = {"good"}, .environment = {search_in("")}});
    EXPECT_EQ(empty.path, file) << empty.output;
}

TEST(Loader, WhatEverybodyMayWriteIsRefused) {
    Folder folder;
    const std::string open = folder.folder("open", 0777), sticky = folder.folder("sticky", 01777),
                      closed = folder.folder("closed");
    Folder::put_plugin(open, "good");
    Folder::put_plugin(sticky, "good");
    const std::string file = Folder::put_plugin(closed, "good", 0777);
    expect_refusal(find_in(open, "good"), SH_ERROR_BACKEND_LOAD, {"directory " + open, "writable by every user"});
    expect_refusal(find_in(sticky, "good"), SH_ERROR_BACKEND_LOAD, {"directory " + sticky, "writable by every user"});
    expect_refusal(find_in(closed, "good"), SH_ERROR_BACKEND_LOAD, {"file " + file, "writable by every user"});
    expect_refusal(run_probe({.arguments = {"good", open + "/stagehand-good.so"}}), SH_ERROR_BACKEND_LOAD,
                   {"writable by every user"});
}

TEST(Loader, LinksAreJudgedByBothEnds) {
    Folder folder;
    const std::string open = folder.folder("open", 0777), closed = folder.folder("closed"),
                      links = folder.folder("links");
    const std::string good = Folder::put_plugin(closed, "good"), bad = Folder::put_plugin(open, "larger");
    ASSERT_EQ(symlink(good.c_str(), (links + "/stagehand-good.so").c_str()), 0);
    ASSERT_EQ(symlink(bad.c_str(), (links + "/stagehand-larger.so").c_str()), 0);
    ASSERT_EQ(symlink(good.c_str(), (open + "/stagehand-good.so").c_str()), 0);
    EXPECT_EQ(find_in(links, "good").status, SH_OK);
    expect_refusal(find_in(links, "larger"), SH_ERROR_BACKEND_LOAD, {"directory " + open});
    expect_refusal(find_in(open, "good"), SH_ERROR_BACKEND_LOAD, {"directory " + open});
}

TEST(Loader, WhatBelongsToOthersIsRefused) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
    Folder folder;
    const std::string mine = folder.folder("mine"), theirs = folder.folder("theirs");
    const std::string file = Folder::put_plugin(mine, "good");
    Folder::put_plugin(theirs, "good");
    ASSERT_EQ(chown(file.c_str(), 12345, 12345), 0);
    ASSERT_EQ(chown(theirs.c_str(), 12345, 12345), 0);
    expect_refusal(find_in(mine, "good"), SH_ERROR_BACKEND_LOAD, {"file " + file, "belongs to user 12345"});
    expect_refusal(find_in(theirs, "good"), SH_ERROR_BACKEND_LOAD, {"directory " + theirs, "belongs to user 12345"});
}

// A program with the rights of its owner must not load a file that its caller chooses.
TEST(Loader, TheVariableMeansNothingToASetuidProgram) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can make a setuid program for another user";
    Folder folder;
    struct statvfs mount = {};
    ASSERT_EQ(statvfs(folder.path().c_str(), &mount), 0);
    if (mount.f_flag & ST_NOSUID) GTEST_SKIP() << folder.path() << " is mounted without setuid";
    const std::string plain = folder.path() + "/plain", privileged = folder.path() + "/privileged",
                      plugins = folder.folder("plugins");
    Folder::copy(probe_program(), plain, 0755);
    Folder::copy(probe_program(), privileged, 04755);
    const std::string file = Folder::put_plugin(plugins, "good");
    const ProbeResult as_user =
        run_probe({.program = plain, .arguments = {"good"}, .environment = {search_in(plugins)}, .as_nobody = true});
    EXPECT_EQ(as_user.user, 65534u) << as_user.output;
    EXPECT_EQ(as_user.path, file) << as_user.output;
    const ProbeResult as_root = run_probe(
        {.program = privileged, .arguments = {"good"}, .environment = {search_in(plugins)}, .as_nobody = true});
    if (as_root.user != 0) GTEST_SKIP() << "this system does not honour setuid here";
    expect_refusal(as_root, SH_ERROR_NOT_FOUND, {"there is no backend 'good'"});
    EXPECT_EQ(as_root.text.find(plugins), std::string::npos) << as_root.text;
}

TEST(Loader, ChoosesNoGpuBackendThatHasNoDevices) {
    Folder folder;
    const std::string file = Folder::put_plugin(folder.path(), "cuda");
    EXPECT_EQ(find_in(folder.path(), "cuda").path, file);
    const ProbeResult result = run_probe({.arguments = {"--auto"}, .environment = {search_in(folder.path())}});
    EXPECT_EQ(result.status, SH_OK) << result.output;
    EXPECT_EQ(result.path, "host") << "the name of the device's backend";
}

TEST(Loader, ListsWhatWorksAndWhatDoesNot) {
    Folder folder;
    const std::string good = Folder::put_plugin(folder.path(), "good"),
                      unavailable = Folder::put_plugin(folder.path(), "unavailable");
    Folder::put_plugin(folder.path(), "lacking");
    const ProbeResult result = run_probe({.arguments = {"--list"}, .environment = {search_in(folder.path())}});
    const std::string& list = result.output;
    EXPECT_EQ(list.rfind("host|0|1|8||\nsim|0|1|1||\n", 0), 0u) << list;
    EXPECT_NE(list.find("\ncuda|-105|0|0||there is no backend 'cuda'"), std::string::npos) << list;
    EXPECT_NE(list.find("\nhip|-105|0|0||"), std::string::npos) << list;
    EXPECT_NE(list.find("\ngood|0|0|3|" + good + "|\n"), std::string::npos) << list;
    EXPECT_NE(list.find("\nunavailable|-402|0|0|" + unavailable + "|the test's plugin can do nothing"),
              std::string::npos)
        << list;
    EXPECT_NE(list.find("\nlacking|-403|0|0||backend 'lacking' cannot be loaded"), std::string::npos) << list;
}

}  // namespace
}  // namespace plugins_test
