// What tests of sockets need: a folder of their own, and a client that connects and asks.
#pragma once

#include <sys/types.h>

#include <string>

#include <nlohmann/json.hpp>

namespace stagehand::test {

// A folder that is removed with everything in it.
class Folder {
public:
    Folder();
    ~Folder();
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    const std::string& path() const { return path_; }
    std::string at(const std::string& name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

bool exists(const std::string& path);
mode_t mode_of(const std::string& path);  // permissions only

// A connection to a Unix socket. An operation that takes longer than ten seconds fails.
class Connection {
public:
    explicit Connection(const std::string& path);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    bool connected() const { return error_ == 0; }
    int error() const { return error_; }  // errno of connect()
    bool send(const std::string& text);
    // Returns everything that arrives until the other end closes.
    std::string receive();
    void close();

private:
    int descriptor_ = -1;
    int error_ = 0;
};

// Asks a control for the snapshot of its process. Returns null if there is no answer, or if the answer is not one line
// of JSON.
nlohmann::json ask(const std::string& path);

}  // namespace stagehand::test
