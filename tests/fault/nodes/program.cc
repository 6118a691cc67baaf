#include "tests/fault/nodes/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace sparsed::test {

absl::Status Program::Start(const std::vector<std::string>& words, const std::string& log) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) return absl::ErrnoToStatus(errno, "fork");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  return absl::OkStatus();
}

bool Program::Lives() {
  if (pid_ <= 0) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == 0) return true;
  pid_ = 0;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return false;
}

void Program::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

void Program::End(int signal) {
  if (pid_ <= 0) return;
  kill(pid_, signal);
  kill(pid_, SIGCONT);
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

}  // namespace sparsed::test
