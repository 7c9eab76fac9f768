// Status: the result of an internal operation. It has a code of the public interface and a text that explains the code.
#pragma once

#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include <stagehand/base.h>

namespace stagehand {

// As wide as a pointer and a code. A success has no text and allocates nothing. Copyable, because several waiters may
// need the same failure. Nothing here throws: the text is left out if no memory is left for it.
class [[nodiscard]] Status {
public:
    Status() = default;
    explicit Status(sh_status code) : code_(code) {}
    Status(sh_status code, std::string text) noexcept : code_(code) { keep(std::move(text)); }
    Status(sh_status code, const char* text) noexcept : code_(code) { keep(text); }

    bool ok() const { return code_ >= 0; }
    sh_status code() const { return code_; }
    const char* text() const { return text_ ? text_->c_str() : sh_status_string(code_); }

    // Returns the same failure with `what` put before its text.
    Status within(std::string_view what) const noexcept {
        if (ok()) return *this;
        try {
            return Status(code_, std::string(what) + ": " + text());
        } catch (const std::bad_alloc&) {
            return *this;
        }
    }

private:
    template <class Text>
    void keep(Text&& text) noexcept {
        try {
            text_ = std::make_shared<const std::string>(std::forward<Text>(text));
        } catch (const std::bad_alloc&) {
        }
    }

    sh_status code_ = SH_OK;
    std::shared_ptr<const std::string> text_;
};

}  // namespace stagehand

// Leaves the enclosing function if the expression, of type Status, is a failure. The function must return Status.
#define SH_TRY(expression)                                                                               \
    do {                                                                                                 \
        if (::stagehand::Status sh_try_status = (expression); !sh_try_status.ok()) return sh_try_status; \
    } while (0)
