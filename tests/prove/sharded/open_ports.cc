#include "tessera/tests/prove/sharded/open_ports.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace prove {
namespace {

/// Adds the inodes of the sockets in a table of /proc/net that are in `state`.
void add_sockets(const std::string& table, const std::string& state, std::set<std::string>& to) {
  std::ifstream file("/proc/self/net/" + table);
  std::string line;
  std::getline(file, line);  // the column headers
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, own_state, queues, timer, retransmits, user, timeout, inode;
    words >> slot >> local >> remote >> own_state >> queues >> timer >> retransmits >> user >>
        timeout >> inode;
    if (own_state == state) to.insert("socket:[" + inode + "]");
  }
}

std::set<std::string> reachable_sockets() {
  std::set<std::string> sockets;
  for (const char* table : {"tcp", "tcp6"}) add_sockets(table, "0A", sockets);  // TCP_LISTEN
  for (const char* table : {"udp", "udp6"}) add_sockets(table, "07", sockets);  // bound
  return sockets;
}

int64_t count(pid_t process, const std::set<std::string>& sockets) {
  int64_t found = 0;
  std::error_code error;
  const std::string folder = "/proc/" + std::to_string(process) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    if (!error && sockets.contains(target.string())) ++found;
  }
  return found;
}

}  // namespace

int64_t open_ports() {
  const std::set<std::string> sockets = reachable_sockets();
  return count(getpid(), sockets) + count(getppid(), sockets);
}

}  // namespace prove
