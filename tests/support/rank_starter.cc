#include "tessera/tests/support/rank_starter.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <list>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

extern char** environ;

namespace tessera::internal::testing {
namespace {

constexpr const char* kStarterFlag = "--rank_starter=";
constexpr size_t kMostBytes = size_t{128} << 10;  // of a request

/// Descriptors for a rank's output, and for its status when it has ended.
using Descriptors = std::array<int, 2>;

/// A request as a message: the body and the variables, and two descriptors.
struct Packet {
  explicit Packet(char* data, size_t size) : bytes{data, size} {
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }

  iovec bytes;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(Descriptors))] = {};
  msghdr message{};
};

void send_request(int socket, std::string text, const Descriptors& descriptors) {
  Packet packet(text.data(), text.size());
  cmsghdr* const header = CMSG_FIRSTHDR(&packet.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(descriptors));
  std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(descriptors));
  if (::sendmsg(socket, &packet.message, MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) {
    throw std::runtime_error(absl::StrCat("no rank was started: ", std::strerror(errno)));
  }
}

/// Receives a request; "" once the parent has closed its end.
std::string receive_request(int socket, Descriptors& descriptors) {
  std::string text(kMostBytes, '\0');
  Packet packet(text.data(), text.size());
  const ssize_t count = ::recvmsg(socket, &packet.message, MSG_CMSG_CLOEXEC);
  const cmsghdr* const header = CMSG_FIRSTHDR(&packet.message);
  if (count <= 0 || header == nullptr) return "";
  std::memcpy(descriptors.data(), CMSG_DATA(header), sizeof(descriptors));
  text.resize(static_cast<size_t>(count));
  return text;
}

struct Child {
  pid_t pid;
  FileDescriptor end;  // readable when it has ended
  FileDescriptor status;
};

/// The starter's side of the socket.
class Server {
 public:
  explicit Server(int socket) : socket_(socket) {}

  /// Serves until the parent has closed its end, then returns ""; in a forked rank returns its
  /// body.
  std::string serve() {
    while (true) {
      std::vector<pollfd> handles = {{socket_.get(), POLLIN, 0}};
      for (const Child& child : children_) handles.push_back({child.end.get(), POLLIN, 0});
      if (::poll(handles.data(), handles.size(), -1) < 0) continue;
      children_.remove_if(has_ended);
      if (handles[0].revents == 0) continue;
      Descriptors descriptors{-1, -1};
      const std::string request = receive_request(socket_.get(), descriptors);
      if (request.empty()) return "";
      const FileDescriptor output(descriptors[0]);
      FileDescriptor status(descriptors[1]);
      const pid_t starter = ::getpid();
      const pid_t pid = ::fork();
      if (pid == 0) return become_rank(request, output.get(), starter);
      ::send(socket_.get(), &pid, sizeof(pid), MSG_NOSIGNAL);
      if (pid < 0) continue;
      FileDescriptor end(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      children_.push_back({pid, std::move(end), std::move(status)});
    }
  }

 private:
  static bool has_ended(const Child& child) {
    int status = 0;
    if (::waitpid(child.pid, &status, WNOHANG) != child.pid) return false;
    return ::write(child.status.get(), &status, sizeof(status)) != 0;
  }

  std::string become_rank(const std::string& request, int output, pid_t starter) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != starter) ::_exit(127);
    ::signal(SIGPIPE, SIG_DFL);
    children_.clear();
    socket_.close();
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    const std::vector<std::string> lines = absl::StrSplit(request, '\0');
    ::clearenv();
    for (size_t i = 1; i < lines.size(); ++i) {
      const std::pair<std::string, std::string> variable =
          absl::StrSplit(lines[i], absl::MaxSplits('=', 1));
      ::setenv(variable.first.c_str(), variable.second.c_str(), 1);
    }
    return lines[0];
  }

  FileDescriptor socket_;
  std::list<Child> children_;
};

}  // namespace

RankStarter& RankStarter::instance() {
  static RankStarter starter;
  return starter;
}

RankStarter::RankStarter() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::runtime_error("socketpair failed");
  }
  socket_ = FileDescriptor(ends[0]);
  const FileDescriptor its(ends[1]);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::string flag = absl::StrCat(kStarterFlag, its.get());
  char* arguments[] = {const_cast<char*>(program.c_str()), flag.data(), nullptr};
  std::string threads = "OMP_NUM_THREADS=1";
  std::vector<char*> environment = {threads.data()};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "OMP_NUM_THREADS=", 16) != 0) environment.push_back(*entry);
  }
  environment.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid > 0) return;
  ::fcntl(its.get(), F_SETFD, 0);
  ::execve(program.c_str(), arguments, environment.data());
  ::_exit(127);
}

RankStarter::Rank RankStarter::start(const std::string& body,
                                     const std::vector<std::string>& variables, int output) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  Rank rank;
  rank.status = FileDescriptor(ends[0]);
  const FileDescriptor write_end(ends[1]);
  const std::string request =
      absl::StrCat(body, std::string(1, '\0'), absl::StrJoin(variables, std::string(1, '\0')));
  send_request(socket_.get(), request, {output, write_end.get()});
  if (::recv(socket_.get(), &rank.pid, sizeof(rank.pid), 0) != sizeof(rank.pid) || rank.pid < 0) {
    throw std::runtime_error("no rank was started");
  }
  return rank;
}

int serve_as_rank_starter_if_asked(int argc, char** argv,
                                   const std::function<int(const std::string& body)>& run_body) {
  int socket = -1;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, kStarterFlag) && !absl::SimpleAtoi(argument, &socket))
      return 3;
  }
  if (socket < 0) return -1;
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  ::signal(SIGPIPE, SIG_IGN);  // if the parent does not read a rank's status
  const std::string body = Server(socket).serve();
  return body.empty() ? 0 : run_body(body);
}

}  // namespace tessera::internal::testing
