// UnixSocket: a listening Unix socket of a control, and its file. Only the user of the process can reach it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "platform/descriptor.h"

namespace stagehand::control {

// The longest path that a Unix socket can have.
constexpr size_t kLongestSocketPath = 107;
// Connections that wait to be accepted.
constexpr int kBacklog = 64;

// Returns the path of a file in the default folder. Makes the folder if it is missing, and checks it.
Status default_socket_path(const std::string& file, std::string* out);

// Checks a folder that only this user may use. Makes it with mode 0700 if it is missing. Refuses a link, a folder of
// another user, and a folder that is open to other users.
Status private_folder(const std::string& path);

class UnixSocket {
public:
    // Listens at `path`. Replaces a socket without a listener. Returns an error if anything else is there.
    static Status open(const std::string& path, std::unique_ptr<UnixSocket>* out);
    // Removes the file, unless another file has taken its place.
    ~UnixSocket();
    UnixSocket(const UnixSocket&) = delete;
    UnixSocket& operator=(const UnixSocket&) = delete;

    const platform::Descriptor& descriptor() const { return listening_; }
    const std::string& path() const { return path_; }

    // For the child of a fork: closes the inherited descriptors, and leaves the file to the parent. Needs no memory and
    // no lock.
    void abandon();

private:
    explicit UnixSocket(const std::string& path);
    Status replace_stale() const;
    Status listen_here();

    const std::string path_;
    const std::string name_;  // in its folder
    const pid_t owner_;
    platform::Descriptor
        folder_;  // kept open, because the path may be relative and the process may change its directory
    platform::Descriptor listening_;
    bool made_ = false;  // this process made the file, with this device and inode:
    dev_t device_ = 0;
    ino_t inode_ = 0;
};

}  // namespace stagehand::control
