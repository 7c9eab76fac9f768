// Descriptor: owns a file descriptor of the library. All that the library opens for longer than a call is in one.
// StandardNumbersHeld: for what other code opens.
#pragma once

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace stagehand::platform {

// Its number is never 0, 1 or 2. The system gives these to the next file of a process that has closed them, and what is
// written to the standard error then would be written into that file.
class Descriptor {
public:
    Descriptor() = default;
    // Takes what open(), socket() and other calls return. A negative number stays, and errno says why.
    explicit Descriptor(int opened) noexcept : number_(opened) {
        if (opened < 0 || opened > STDERR_FILENO) return;
        number_ = fcntl(opened, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        const int error = errno;
        ::close(opened);
        errno = error;
    }
    Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        if (this != &other) {
            close();
            number_ = other.release();
        }
        return *this;
    }
    ~Descriptor() { close(); }

    bool is_open() const { return number_ >= 0; }
    int number() const { return number_; }
    // Somebody else closes it from now on.
    int release() noexcept { return std::exchange(number_, -1); }
    // Returns what the system's call returns. errno stays if nothing was open.
    int close() noexcept { return is_open() ? ::close(release()) : 0; }

private:
    int number_ = -1;
};

// Keeps the numbers 0, 1 and 2 from the descriptors of other code while it lives.
class StandardNumbersHeld {
public:
    StandardNumbersHeld() noexcept {
        for (struct stat& held : held_) {
            const int number = memfd_create("stagehand-held", MFD_CLOEXEC);
            if (number > STDERR_FILENO) ::close(number);
            if (number < 0 || number > STDERR_FILENO) break;
            if (fstat(number, &held) == 0) numbers_[&held - held_] = number;
        }
    }
    // The engine may have taken a number back meanwhile, with dup2().
    ~StandardNumbersHeld() {
        struct stat now = {};
        for (size_t i = 0; i < 3; i++)
            if (numbers_[i] >= 0 && fstat(numbers_[i], &now) == 0 && now.st_dev == held_[i].st_dev &&
                now.st_ino == held_[i].st_ino)
                ::close(numbers_[i]);
    }
    StandardNumbersHeld(const StandardNumbersHeld&) = delete;
    StandardNumbersHeld& operator=(const StandardNumbersHeld&) = delete;

private:
    struct stat held_[3] = {};
    int numbers_[3] = {-1, -1, -1};
};

}  // namespace stagehand::platform
