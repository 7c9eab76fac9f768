// Paths that are not regular files, and files that change while they are read. Each gives an error, and nothing hangs.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

#include "model/byte_source.h"
#include "model/gguf.h"
#include "model/read_model.h"
#include "model/safetensors.h"
#include "model_files.h"

namespace stagehand::cli::model::test {

namespace {

namespace fs = std::filesystem;

// The number of this process's open files.
std::size_t open_files() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) {
        ++count;
    }
    return count;
}

TEST(SpecialFiles, AreRefusedWithoutBeingOpened) {
    const TemporaryFolder folder;
    const std::string fifo = folder.path("fifo.safetensors");
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    const std::string socket_path = folder.path("socket.safetensors");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    ASSERT_LT(socket_path.size(), sizeof address.sun_path);
    std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
    const int socket_fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    ASSERT_EQ(::bind(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);

    const std::pair<std::string, std::string> cases[] = {
        {fifo, "is a fifo, not a regular file"},
        {socket_path, "is a socket, not a regular file"},
        {"/dev/zero", "is a device, not a regular file"},
        {"/dev/null", "is a device, not a regular file"},
    };
    for (const auto& [path, message] : cases) {
        const ModelError error = error_of([&path = path] { read_model(path); });
        EXPECT_EQ(error.file(), path);
        EXPECT_EQ(error.message(), message);
    }
    ::close(socket_fd);
}

TEST(SpecialFiles, AFifoInAFolderOrAsAShard) {
    const TemporaryFolder folder;
    ASSERT_EQ(::mkfifo(folder.path("m.safetensors").c_str(), 0600), 0);
    EXPECT_NE(error_of([&] { read_model(folder.path()); }).message().find("is a fifo"), std::string::npos);
    folder.write("m.safetensors.index.json", R"({"weight_map":{"a":"m.safetensors"}})");
    EXPECT_NE(error_of([&] { read_model(folder.path()); }).message().find("is a fifo"), std::string::npos);
}

TEST(SpecialFiles, LinksThatLeadNowhereOrInCircles) {
    const TemporaryFolder folder;
    fs::create_symlink("nowhere", folder.path("gone.safetensors"));
    fs::create_symlink("circle.safetensors", folder.path("circle.safetensors"));
    EXPECT_NE(error_of([&] { read_model(folder.path("gone.safetensors")); }).message().find("No such file"),
              std::string::npos);
    EXPECT_NE(error_of([&] { read_model(folder.path("circle.safetensors")); }).message().find("symbolic links"),
              std::string::npos);
}

TEST(SpecialFiles, AFileThatShrinksAfterItWasOpened) {
    const TemporaryFolder folder;
    const std::string header = "{" + entry("t", "U8", "[100000]", 0, 100'000) + "}";
    const std::string path = folder.write("m.safetensors", safetensors(header, 100'000));
    FileSource source(path);
    ASSERT_EQ(::truncate(path.c_str(), 20), 0);
    Model model;
    const ModelError error = error_of([&] { read_safetensors(source, {}, model); });
    EXPECT_EQ(error.file(), path);
    EXPECT_EQ(error.field(), "byte 20");
    EXPECT_NE(error.message().find("it shrank while it was read"), std::string::npos) << error.what();
}

TEST(SpecialFiles, ErrorsLeaveNoFileOpen) {
    const TemporaryFolder folder;
    folder.write("a.safetensors", "short");
    folder.write("b.safetensors", safetensors("{" + entry("t", "U8", "[4]", 0, 4) + "}", 4));
    folder.write("c.safetensors.index.json", R"({"weight_map":{"t":"b.safetensors","u":"a.safetensors"}})");
    const std::size_t before = open_files();
    error_of([&] { read_model(folder.path("a.safetensors")); });
    error_of([&] { read_model(folder.path("c.safetensors.index.json")); });
    error_of([&] { read_model(folder.path()); });
    error_of([&] { read_model("/dev/zero"); });
    EXPECT_EQ(open_files(), before);
}

TEST(SpecialFiles, OnlyTheHeaderIsRead) {
    // A sparse file of 4 TiB: reading its data would never end.
    const TemporaryFolder folder;
    const std::uint64_t bytes = std::uint64_t{1} << 42;
    const std::string header = "{" + entry("t", "U8", "[" + std::to_string(bytes) + "]", 0, bytes) + "}";
    const std::string path = folder.write("m.safetensors", safetensors(header));
    if (::truncate(path.c_str(), static_cast<off_t>(8 + header.size() + bytes)) != 0) {
        GTEST_SKIP() << "this file system holds no file of 4 TiB";
    }
    EXPECT_EQ(read_model(path).total_bytes, bytes);
}

TEST(SpecialFiles, ReadingOutsideMemoryIsAnError) {
    MemorySource source("memory", "0123456789");
    std::array<char, 4> to{};
    source.read(6, to);
    EXPECT_EQ(to[3], '9');
    EXPECT_THROW(source.read(7, to), ModelError);
    EXPECT_THROW(source.read(~std::uint64_t{0}, to), ModelError);
}

}  // namespace

}  // namespace stagehand::cli::model::test
