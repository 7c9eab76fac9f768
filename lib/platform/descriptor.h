// FileIdentity: which file a descriptor is. Descriptor: owns a file descriptor of the library. All that the library
// opens for longer than a call is in one. StandardNumbersHeld: for what other code opens.
#pragma once

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace stagehand::platform {

// The engine may close descriptors that are not its own, as daemons close all, and the system then gives their numbers
// to the engine's next files. Files without a name of their own, such as eventfds, are all alike.
class FileIdentity {
public:
    FileIdentity() = default;
    explicit FileIdentity(int number) noexcept {
        struct stat file;
        if (!(known_ = fstat(number, &file) == 0)) return;
        device_ = file.st_dev;
        inode_ = file.st_ino;
    }
    // Whether the number is that of the same file still.
    bool is_at(int number) const noexcept {
        struct stat now;
        return known_ && fstat(number, &now) == 0 && now.st_dev == device_ && now.st_ino == inode_;
    }

private:
    dev_t device_ = 0;
    ino_t inode_ = 0;
    bool known_ = false;
};

// Its number is never 0, 1 or 2. The system gives these to the next file of a process that has closed them, and what is
// written to the standard error then would be written into that file.
class Descriptor {
public:
    Descriptor() = default;
    // Takes what open(), socket() and other calls return. A negative number stays, and errno says why.
    explicit Descriptor(int opened) noexcept : number_(opened) {
        const int before = errno;
        if (opened >= 0 && opened <= STDERR_FILENO) {
            number_ = fcntl(opened, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
            const int error = number_ < 0 ? errno : before;
            ::close(opened);
            errno = error;
        }
        if (is_open()) file_ = FileIdentity(number_);
    }
    Descriptor(Descriptor&& other) noexcept : file_(other.file_), number_(other.release()) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        if (this != &other) {
            close();
            file_ = other.file_;
            number_ = other.release();
        }
        return *this;
    }
    ~Descriptor() { close(); }

    bool is_open() const { return number_ >= 0; }
    // Whether somebody else has closed it: the number is free now, or another file's.
    bool is_lost() const noexcept { return is_open() && !file_.is_at(number_); }
    int number() const { return number_; }
    // -1 if it is lost: for calls that would change another file, or take its bytes for those of this one.
    int own_number() const noexcept { return is_lost() ? -1 : number_; }
    // Somebody else closes it from now on.
    int release() noexcept { return std::exchange(number_, -1); }
    // Returns what the system's call returns. errno stays if nothing was open. EBADF if it is lost.
    int close() noexcept {
        const bool lost = is_lost();
        const int number = release();
        if (!lost) return number < 0 ? 0 : ::close(number);
        errno = EBADF;
        return -1;
    }

private:
    FileIdentity file_;
    int number_ = -1;
};

// Keeps the numbers 0, 1 and 2 from the descriptors of other code while it lives.
class StandardNumbersHeld {
public:
    StandardNumbersHeld() noexcept {
        for (size_t i = 0; i < 3; i++) {
            const int number = memfd_create("stagehand-held", MFD_CLOEXEC);
            if (number > STDERR_FILENO) ::close(number);
            if (number < 0 || number > STDERR_FILENO) break;
            held_[i] = FileIdentity(numbers_[i] = number);
        }
    }
    // The engine may have taken a number back meanwhile, with dup2().
    ~StandardNumbersHeld() {
        for (size_t i = 0; i < 3; i++)
            if (held_[i].is_at(numbers_[i])) ::close(numbers_[i]);
    }
    StandardNumbersHeld(const StandardNumbersHeld&) = delete;
    StandardNumbersHeld& operator=(const StandardNumbersHeld&) = delete;

private:
    FileIdentity held_[3];
    int numbers_[3] = {-1, -1, -1};
};

}  // namespace stagehand::platform
