// MonitorSocket: the listening socket of the monitor and its file, where only the user who runs the process can get at it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/status.h"

namespace stagehand::telemetry {

// The longest path that a Unix socket can have.
constexpr size_t kLongestSocketPath = 107;

// Where the monitor of this process is if nobody says otherwise: the folder is made if need be, and checked.
Status default_monitor_path(std::string* out);

// A folder for this user alone: made with 0700 if it is not there; refused if it is a link, another user's, or open to others.
Status private_folder(const std::string& path);

class MonitorSocket {
public:
    // Listens at `path`. A socket there at which nobody listens any more is replaced; anything else is an error.
    static Status open(const std::string& path, std::unique_ptr<MonitorSocket>* out);
    // Removes the file, unless another one has taken its place.
    ~MonitorSocket();
    MonitorSocket(const MonitorSocket&) = delete;
    MonitorSocket& operator=(const MonitorSocket&) = delete;

    int descriptor() const { return listening_; }
    const std::string& path() const { return path_; }

    // In the child of a fork: closes what was inherited, and leaves the file to the parent. Needs no memory and no lock.
    void abandon();

private:
    explicit MonitorSocket(const std::string& path);
    Status replace_stale() const;
    Status listen_here();

    const std::string path_;
    const std::string name_;   // in its folder
    const pid_t owner_;
    int folder_ = -1;          // kept open: the path may be relative, and the process may go elsewhere
    int listening_ = -1;
    bool made_ = false;        // the file is ours, and is this one:
    dev_t device_ = 0;
    ino_t inode_ = 0;
};

}  // namespace stagehand::telemetry
