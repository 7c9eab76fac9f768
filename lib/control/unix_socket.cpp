#include "control/unix_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace stagehand::control {
namespace {

constexpr auto kPatience = std::chrono::seconds(1);

Status failure(const std::string& path, const std::string& what) {
    return Status(SH_ERROR_IO, "socket " + path + ": " + what);
}
Status failed_call(const std::string& path, const char* what) {
    return failure(path, std::string(what) + ": " + std::strerror(errno));
}

std::string user(uid_t id) { return "user " + std::to_string(id); }

// Returns true if the folder exists, belongs to the user, and only the user can write to it.
bool safe_base(const char* path) {
    struct stat found;
    return path && path[0] == '/' && stat(path, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
           !(found.st_mode & 022);
}

sockaddr_un address_of(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
}

// Holds the lock of a folder, so that one of two processes that start at one path finds the other. Goes on without the
// lock after kPatience, because another process may hold it for ever.
class FolderLock {
public:
    explicit FolderLock(int folder) : folder_(folder) {
        const auto until = std::chrono::steady_clock::now() + kPatience;
        while (!(held_ = flock(folder_, LOCK_EX | LOCK_NB) == 0) && errno == EWOULDBLOCK &&
               std::chrono::steady_clock::now() < until)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ~FolderLock() {
        if (held_) flock(folder_, LOCK_UN);
    }
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

private:
    const int folder_;
    bool held_ = false;
};

}  // namespace

Status private_folder(const std::string& path) {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return failed_call(path, "the folder could not be created");
    struct stat found;
    if (lstat(path.c_str(), &found) != 0) return failed_call(path, "the folder could not be inspected");
    if (S_ISLNK(found.st_mode)) return failure(path, "is a link, not a folder");
    if (!S_ISDIR(found.st_mode)) return failure(path, "is not a folder");
    if (found.st_uid != geteuid())
        return failure(path, "belongs to " + user(found.st_uid) + ", not to " + user(geteuid()));
    if (found.st_mode & 077) return failure(path, "is open to other users; make it private (chmod 700)");
    return Status();
}

Status default_socket_path(const std::string& file, std::string* out) {
    const std::string name = "/" + file;
    // A folder that belongs to another user, or whose path is too long for a socket, cannot be used.
    const char* const runtime_folder = secure_getenv("XDG_RUNTIME_DIR");
    std::string folder = runtime_folder ? std::string(runtime_folder) + "/stagehand" : "";
    if (!safe_base(runtime_folder) || folder.size() + name.size() > kLongestSocketPath)
        folder = "/tmp/stagehand-" + std::to_string(geteuid());
    SH_TRY(private_folder(folder));
    *out = folder + name;
    return Status();
}

UnixSocket::UnixSocket(const std::string& path)
    : path_(path), name_(path.substr(path.find_last_of('/') + 1)), owner_(getpid()) {}

UnixSocket::~UnixSocket() {
    (void)listening_.close();
    struct stat found;
    if (made_ && getpid() == owner_ && fstatat(folder_.number(), name_.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 &&
        found.st_dev == device_ && found.st_ino == inode_)
        unlinkat(folder_.number(), name_.c_str(), 0);
}

void UnixSocket::abandon() {
    (void)listening_.close();
    (void)folder_.close();
    made_ = false;
}

Status UnixSocket::open(const std::string& path, std::unique_ptr<UnixSocket>* out) {
    if (path.empty()) return Status(SH_ERROR_INVALID_ARGUMENT, "path is empty");
    if (path.size() > kLongestSocketPath)
        return Status(SH_ERROR_INVALID_ARGUMENT, "path has " + std::to_string(path.size()) + " bytes, more than the " +
                                                     std::to_string(kLongestSocketPath) +
                                                     " that a socket path can have");
    const size_t slash = path.find_last_of('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    std::unique_ptr<UnixSocket> socket(new UnixSocket(path));
    platform::Descriptor& descriptor = socket->folder_;
    descriptor = platform::Descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!descriptor.is_open() && errno == EACCES)  // it may be entered, but not listed
        descriptor = platform::Descriptor(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!descriptor.is_open()) return failed_call(path, "its folder could not be opened");
    if (socket->name_.empty()) return failure(path, "is a folder, not a socket");
    FolderLock alone(descriptor.number());
    SH_TRY(socket->replace_stale());
    SH_TRY(socket->listen_here());
    *out = std::move(socket);
    return Status();
}

// Removes a socket without a listener.
Status UnixSocket::replace_stale() const {
    struct stat found;
    if (fstatat(folder_.number(), name_.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? Status() : failed_call(path_, "could not be inspected");
    if (!S_ISSOCK(found.st_mode)) return failure(path_, "exists already and is not a socket");
    if (found.st_uid != geteuid())
        return failure(path_, "belongs to " + user(found.st_uid) + ", not to " + user(geteuid()));
    platform::Descriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!probe.is_open()) return failed_call(path_, "a socket could not be created");
    const sockaddr_un address = address_of(path_);
    const bool answered =
        connect(probe.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN;
    const int why = errno;
    (void)probe.close();
    errno = why;
    if (answered) return failure(path_, "another process already listens there");
    if (errno == ENOENT) return Status();
    if (errno != ECONNREFUSED) return failed_call(path_, "is in use");
    if (unlinkat(folder_.number(), name_.c_str(), 0) != 0 && errno != ENOENT)
        return failed_call(path_, "the socket of an ended process could not be removed");
    return Status();
}

Status UnixSocket::listen_here() {
    listening_ = platform::Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!listening_.is_open()) return failed_call(path_, "a socket could not be created");
    // The file takes its mode from the socket. Nobody can connect before the socket listens.
    if (fchmod(listening_.number(), 0600) != 0) return failed_call(path_, "its permissions could not be set");
    const sockaddr_un address = address_of(path_);
    if (bind(listening_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
        return failed_call(path_, "could not be created");
    struct stat made;
    if (fstatat(folder_.number(), name_.c_str(), &made, AT_SYMLINK_NOFOLLOW) != 0)
        return failed_call(path_, "could not be inspected");
    made_ = true;
    device_ = made.st_dev;
    inode_ = made.st_ino;
    if (!S_ISSOCK(made.st_mode) || (made.st_mode & 077))
        return failure(path_, "its file system does not support private sockets");
    if (listen(listening_.number(), kBacklog) != 0) return failed_call(path_, "could not listen");
    return Status();
}

}  // namespace stagehand::control
