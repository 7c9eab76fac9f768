// A client of HTTP for tests: sends what it is told to, also what is no whole request.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace stagehand::test {

struct HttpAnswer {
    int status = 0;  // 0: the connection ended without an answer
    std::string head, body;

    nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
};

// A connection to an address as sh_control_info has it. An operation that takes longer than thirty seconds fails.
class HttpClient {
public:
    explicit HttpClient(const std::string& address);
    ~HttpClient();
    HttpClient(const HttpClient&) = delete;
    HttpClient& operator=(const HttpClient&) = delete;

    bool connected() const { return connected_; }
    bool send(const std::string& text);
    // Reads one answer. The connection stays.
    HttpAnswer receive();
    bool is_closed_by_peer();

private:
    int descriptor_ = -1;
    bool connected_ = false;
    std::string rest_;  // that has come after the last answer
};

std::string request_text(const std::string& method, const std::string& target, const std::string& body = "",
                         const std::string& token = "");

// One request on a connection of its own.
HttpAnswer http(const std::string& address, const std::string& method, const std::string& target,
                const std::string& body = "", const std::string& token = "");

}  // namespace stagehand::test
