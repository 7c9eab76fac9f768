#include "control/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

#include "../core/socket_client.h"

namespace stagehand::control {
namespace {

using test::Connection;
using test::exists;
using test::Folder;
using test::mode_of;

#define OPENS(path, socket)                                      \
    do {                                                         \
        const Status opened = UnixSocket::open(path, &(socket)); \
        ASSERT_TRUE(opened.ok()) << opened.text();               \
    } while (0)

void expect_refused(const Status& status, sh_status code, const std::string& says) {
    EXPECT_EQ(status.code(), code) << status.text();
    EXPECT_NE(std::string(status.text()).find(says), std::string::npos) << status.text();
}

// Sets a variable of the environment, and restores it at the end.
class Variable {
public:
    Variable(const char* name, const std::string& value) : name_(name) {
        const char* const before = std::getenv(name);
        had_ = before != nullptr;
        before_ = had_ ? before : "";
        setenv(name, value.c_str(), 1);
    }
    ~Variable() { had_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_); }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

private:
    const char* const name_;
    bool had_ = false;
    std::string before_;
};

// Leaves a socket whose listener has ended.
void leave_stale_socket(const std::string& path) {
    const int descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(listen(descriptor, 1), 0);
    close(descriptor);
}

TEST(UnixSocket, IsForItsOwnerAloneWhateverTheMask) {
    Folder folder;
    const mode_t before = umask(0);
    std::unique_ptr<UnixSocket> socket;
    const Status opened = UnixSocket::open(folder.at("s"), &socket);
    umask(before);
    ASSERT_TRUE(opened.ok()) << opened.text();
    EXPECT_EQ(mode_of(folder.at("s")), 0600u);
    EXPECT_TRUE(Connection(folder.at("s")).connected());
    socket.reset();
    EXPECT_FALSE(exists(folder.at("s")));
}

TEST(UnixSocket, PathsThatAreNone) {
    Folder folder;
    std::unique_ptr<UnixSocket> socket;
    expect_refused(UnixSocket::open("", &socket), SH_ERROR_INVALID_ARGUMENT, "empty");
    const std::string longest = folder.path() + "/" + std::string(kLongestSocketPath - folder.path().size() - 1, 'x');
    expect_refused(UnixSocket::open(longest + "x", &socket), SH_ERROR_INVALID_ARGUMENT, "108 bytes");
    expect_refused(UnixSocket::open(folder.at("no/such"), &socket), SH_ERROR_IO, "folder");
    expect_refused(UnixSocket::open(folder.path() + "/", &socket), SH_ERROR_IO, "is a folder");
    expect_refused(UnixSocket::open(folder.path(), &socket), SH_ERROR_IO, "not a socket");
    OPENS(longest, socket);
    EXPECT_TRUE(Connection(longest).connected());
}

TEST(UnixSocket, LeavesOtherFilesAlone) {
    Folder folder;
    std::ofstream(folder.at("file")) << "precious";
    symlink("file", folder.at("link").c_str());
    symlink("nowhere", folder.at("dangling").c_str());
    std::unique_ptr<UnixSocket> socket;
    for (const char* name : {"file", "link", "dangling"})
        expect_refused(UnixSocket::open(folder.at(name), &socket), SH_ERROR_IO, "not a socket");
    std::string kept;
    std::ifstream(folder.at("file")) >> kept;
    EXPECT_EQ(kept, "precious");
    EXPECT_TRUE(exists(folder.at("link")));
    EXPECT_TRUE(exists(folder.at("dangling")));
    EXPECT_FALSE(exists(folder.at("nowhere")));
}

TEST(UnixSocket, ReplacesWhatAnEndedProcessLeft) {
    Folder folder;
    leave_stale_socket(folder.at("s"));
    ASSERT_FALSE(Connection(folder.at("s")).connected());
    std::unique_ptr<UnixSocket> socket;
    OPENS(folder.at("s"), socket);
    EXPECT_TRUE(Connection(folder.at("s")).connected());
    EXPECT_EQ(mode_of(folder.at("s")), 0600u);
}

TEST(UnixSocket, DoesNotReplaceWhatAnswers) {
    Folder folder;
    std::unique_ptr<UnixSocket> first, second;
    OPENS(folder.at("s"), first);
    expect_refused(UnixSocket::open(folder.at("s"), &second), SH_ERROR_IO, "another process already listens there");
    EXPECT_TRUE(Connection(folder.at("s")).connected());
}

TEST(UnixSocket, LinkToASocketIsNotFollowed) {
    Folder folder;
    leave_stale_socket(folder.at("s"));
    symlink("s", folder.at("link").c_str());
    std::unique_ptr<UnixSocket> socket;
    expect_refused(UnixSocket::open(folder.at("link"), &socket), SH_ERROR_IO, "not a socket");
    EXPECT_TRUE(exists(folder.at("s")));
}

TEST(UnixSocket, RemovesOnlyItsOwnFile) {
    Folder folder;
    std::unique_ptr<UnixSocket> socket;
    OPENS(folder.at("s"), socket);
    ASSERT_EQ(rename(folder.at("s").c_str(), folder.at("away").c_str()), 0);
    leave_stale_socket(folder.at("s"));
    socket.reset();
    EXPECT_TRUE(exists(folder.at("s")));
}

TEST(UnixSocket, RelativePathsSurviveAChangeOfFolder) {
    Folder folder;
    char before[4096];
    ASSERT_NE(getcwd(before, sizeof before), nullptr);
    ASSERT_EQ(chdir(folder.path().c_str()), 0);
    std::unique_ptr<UnixSocket> socket;
    const Status opened = UnixSocket::open("s", &socket);
    ASSERT_EQ(chdir(before), 0);
    ASSERT_TRUE(opened.ok()) << opened.text();
    EXPECT_TRUE(exists(folder.at("s")));
    socket.reset();
    EXPECT_FALSE(exists(folder.at("s")));
}

TEST(UnixSocket, AbandonedInAChildTheFileStays) {
    Folder folder;
    std::unique_ptr<UnixSocket> socket;
    OPENS(folder.at("s"), socket);
    const pid_t child = fork();
    if (child == 0) {
        socket.reset();  // the child's check of the owner also keeps it from removing the socket
        _exit(0);
    }
    waitpid(child, nullptr, 0);
    EXPECT_TRUE(exists(folder.at("s")));
    EXPECT_TRUE(Connection(folder.at("s")).connected());
    socket->abandon();
    socket.reset();
    EXPECT_TRUE(exists(folder.at("s")));
}

TEST(MonitorFolder, IsMadeForItsOwnerAlone) {
    Folder folder;
    const mode_t before = umask(0);
    const Status made = private_folder(folder.at("f"));
    umask(before);
    ASSERT_TRUE(made.ok()) << made.text();
    EXPECT_EQ(mode_of(folder.at("f")), 0700u);
    EXPECT_TRUE(private_folder(folder.at("f")).ok());
}

TEST(MonitorFolder, IsRefusedWhereOthersCouldMeddle) {
    Folder folder;
    for (const mode_t mode : {0750, 0705, 0710, 0777, 01777}) {
        mkdir(folder.at("open").c_str(), 0700);
        chmod(folder.at("open").c_str(), mode);
        expect_refused(private_folder(folder.at("open")), SH_ERROR_IO, "open to other users");
        EXPECT_EQ(mode_of(folder.at("open")), mode);
    }
    mkdir(folder.at("real").c_str(), 0700);
    symlink("real", folder.at("link").c_str());
    expect_refused(private_folder(folder.at("link")), SH_ERROR_IO, "is a link");
    std::ofstream(folder.at("file")) << "";
    expect_refused(private_folder(folder.at("file")), SH_ERROR_IO, "not a folder");
    expect_refused(private_folder(folder.at("no/such")), SH_ERROR_IO, "could not be created");
}

TEST(MonitorFolder, AnothersIsRefused) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can make a folder that is another user's";
    Folder folder;
    mkdir(folder.at("f").c_str(), 0700);
    ASSERT_EQ(chown(folder.at("f").c_str(), 65534, 65534), 0);
    expect_refused(private_folder(folder.at("f")), SH_ERROR_IO, "belongs to user 65534");
    leave_stale_socket(folder.at("s"));
    ASSERT_EQ(chown(folder.at("s").c_str(), 65534, 65534), 0);
    std::unique_ptr<UnixSocket> socket;
    expect_refused(UnixSocket::open(folder.at("s"), &socket), SH_ERROR_IO, "belongs to user 65534");
    EXPECT_TRUE(exists(folder.at("s")));
}

TEST(MonitorPath, IsInTheRuntimeFolder) {
    Folder folder;
    Variable variable("XDG_RUNTIME_DIR", folder.path());
    std::string path;
    ASSERT_TRUE(default_socket_path(std::to_string(getpid()) + ".sock", &path).ok());
    EXPECT_EQ(path, folder.at("stagehand/" + std::to_string(getpid()) + ".sock"));
    EXPECT_EQ(mode_of(folder.at("stagehand")), 0700u);
    chmod(folder.at("stagehand").c_str(), 0755);
    expect_refused(default_socket_path(std::to_string(getpid()) + ".sock", &path), SH_ERROR_IO, "open to other users");
}

TEST(MonitorPath, IsInTmpWhereThatFolderIsNoUse) {
    Folder folder, good;
    chmod(folder.path().c_str(), 0777);
    const std::string in_tmp = "/tmp/stagehand-" + std::to_string(geteuid()) + "/" + std::to_string(getpid()) + ".sock";
    for (const std::string& value : {folder.path(), std::string("relative"), std::string("/no/such"), std::string(),
                                     good.path() + std::string(100, '/')}) {
        Variable variable("XDG_RUNTIME_DIR", value);
        std::string path;
        const Status chosen = default_socket_path(std::to_string(getpid()) + ".sock", &path);
        ASSERT_TRUE(chosen.ok()) << chosen.text();
        EXPECT_EQ(path, in_tmp) << value;
        EXPECT_EQ(mode_of("/tmp/stagehand-" + std::to_string(geteuid())), 0700u);
    }
    EXPECT_FALSE(exists(folder.at("stagehand")));
    EXPECT_FALSE(exists(good.at("stagehand")));
}

}  // namespace
}  // namespace stagehand::control
