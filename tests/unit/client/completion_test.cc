// What shells offer, and manual pages: from the tree of commands.
#include "client/cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/command_walk.h"
#include "client/cli/man_page.h"

namespace sparsed::cli {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Tree : public testing::Test {
 protected:
  Tree() : app_("Talks to sparsed.", "sparsectl") {
    app_.add_option("-s,--server", invocation_.server, "host:port");
    app_.add_option("--sort", invocation_.sort)->type_name("COLUMN");
    AddCommands(app_, invocation_);
  }

  Completions All(const std::vector<std::string>& words) {
    return Complete(
        app_, words,
        [this](const std::string& type, const CLI::App& command) -> std::vector<std::string> {
          asked_ = type;
          if (type == "MATRIX") return {"cora", "core", "web"};
          if (type != "COLUMN") return {"weights"};
          std::vector<std::string> columns;
          for (const Listing::Column& column : invocation_.columns[&command]) {
            columns.push_back(column.Word());
          }
          return columns;
        });
  }
  std::vector<std::string> Words(const std::vector<std::string>& words) {
    std::vector<std::string> found;
    for (const Completion& completion : All(words).words) found.push_back(completion.word);
    return found;
  }

  CLI::App app_;
  Invocation invocation_;
  std::string asked_;
};

TEST_F(Tree, StepsOfPipelines) {
  EXPECT_THAT(Words({"prepare", "cora", "--pipeline=ds"}), IsEmpty());
  EXPECT_THAT(Words({"prepare", "cora", "--pipeline=dc"}), ElementsAre("--pipeline=dcsr"));
  EXPECT_THAT(Words({"prepare", "cora", "--pipeline", "l"}),
              ElementsAre("lsh_cluster", "lpt_sort"));
  EXPECT_THAT(Words({"prepare", "cora", "--pipeline=lsh_cluster>as"}),
              ElementsAre("--pipeline=lsh_cluster>aspt"));
  EXPECT_THAT(Words({"prepare", "cora", "--pipeline", "lsh_cluster > as"}),
              ElementsAre("lsh_cluster > aspt"));
}

TEST_F(Tree, CommandsAndTheirCommands) {
  EXPECT_THAT(Words({"sp"}), ElementsAre("spmm", "spgemm", "spy"));
  EXPECT_THAT(Words({""}), AllOf(Contains("buffers"), Contains("list"), Not(Contains("manual"))));
  EXPECT_THAT(Words({"buffers", ""}), ElementsAre("list", "put", "get", "renew", "delete"));
  EXPECT_THAT(Words({"--server", "x:1", "buffers", "pu"}), ElementsAre("put"));
  EXPECT_THAT(Words({"nonsense", "li"}), Contains("list"));
  EXPECT_THAT(Words({}), Contains("list"));
}

TEST_F(Tree, FlagsAndTheirValues) {
  EXPECT_THAT(Words({"spmm", "cora", "--oper"}), ElementsAre("--operand"));
  EXPECT_THAT(Words({"spmm", "--serv"}), ElementsAre("--server")) << "those of all commands, too";
  EXPECT_THAT(Words({"bench", "cora", "--op="}),
              ElementsAre("--op=spmm", "--op=sddmm", "--op=spgemm"));
  EXPECT_THAT(Words({"bench", "cora", "--op", "sd"}), ElementsAre("sddmm"));
  EXPECT_THAT(Words({"bench", "cora", "--transport", ""}), ElementsAre("stream", "held", "shared"));
  const auto formats = ElementsAre("--format=mtx", "--format=npz", "--format=edges", "--format=npy",
                                   "--format=metis");
  EXPECT_THAT(Words({"upload", "--format="}), formats);
  EXPECT_THAT(Words({"download", "cora", "--format="}), formats);
  EXPECT_FALSE(All({"upload", "--format="}).files);
  EXPECT_THAT(Words({"prepare", "cora", "--tune-for="}),
              ElementsAre("--tune-for=spmm:", "--tune-for=spmm^T:", "--tune-for=sddmm:",
                          "--tune-for=spgemm"));
  EXPECT_THAT(Words({"upload", "x.mtx", "--tune-for", "sd"}), ElementsAre("sddmm:"));
  EXPECT_THAT(Words({"explain", "--device="}), ElementsAre("--device=cpu", "--device=cuda:0"));
  EXPECT_THAT(Words({"calibrate", "--device="}), ElementsAre("--device=cpu", "--device=cuda"));
  EXPECT_THAT(Words({"share", "cora", "--with="}), ElementsAre("--with=all"));
  EXPECT_THAT(Words({"bench", "--csv", "co"}), ElementsAre("cora", "core"))
      << "a flag without a value takes no word";
  EXPECT_THAT(Words({"spmm", "cora", "--nonsense=x"}), IsEmpty());
}

TEST_F(Tree, NamesThatTheServerKnows) {
  EXPECT_THAT(Words({"show", "co"}), ElementsAre("cora", "core"));
  EXPECT_THAT(Words({"delete", "cora", "w"}), ElementsAre("web")) << "several names";
  EXPECT_THAT(Words({"show", "cora", ""}), IsEmpty()) << "one name alone";
  EXPECT_THAT(Words({"buffers", "get", ""}), ElementsAre("weights"));
  EXPECT_EQ(asked_, "BUFFER");
  EXPECT_THAT(Words({"spmm", "cora", "--operand=@w"}), ElementsAre("--operand=@weights"));
  EXPECT_THAT(Words({"spmm", "cora", "-b", "@w"}), ElementsAre("@weights"));
  EXPECT_THAT(Words({"spmm", "cora", "--keep-as="}), ElementsAre("--keep-as=weights"));
}

TEST_F(Tree, ColumnsOfWhatACommandLists) {
  EXPECT_THAT(Words({"list", "--sort=no"}), ElementsAre("--sort=nonzeros", "--sort=nodes"));
  EXPECT_THAT(Words({"list", "--sort=-no"}), ElementsAre("--sort=-nonzeros", "--sort=-nodes"));
  EXPECT_THAT(Words({"list", "--sort", "pa"}), ElementsAre("pattern"));
  EXPECT_THAT(Words({"buffers", "--sort=t"}),
              ElementsAre("--sort=type", "--sort=tenant", "--sort=time-to-live"));
  EXPECT_THAT(Words({"buffers", "list", "--sort=-i"}), ElementsAre("--sort=-idle"));
  EXPECT_THAT(Words({"model", "list", "--sort=h"}), ElementsAre("--sort=held-out"));
  EXPECT_THAT(Words({"snapshot", "verify", "x", "--sort=k"}), ElementsAre("--sort=kind"));
  EXPECT_THAT(Words({"tenants", "--sort=-u"}), ElementsAre("--sort=-used"));
  EXPECT_THAT(Words({"top", "--sort=t"}), ElementsAre("--sort=total", "--sort=tenant"));
  EXPECT_THAT(Words({"info", "--sort="}), IsEmpty()) << "it lists nothing";
}

TEST_F(Tree, Files) {
  EXPECT_TRUE(All({"upload", ""}).files);
  EXPECT_TRUE(All({"spmm", "cora", "--operand=B"}).files);
  EXPECT_FALSE(All({"show", ""}).files);
  EXPECT_FALSE(All({"bench", "cora", "--k="}).files);
  EXPECT_EQ(Lines({{{"list", "List them"}, {"x", ""}}, true}), "list\tList them\nx\n:files\n");
}

TEST_F(Tree, EveryCommandHasAPageThatSaysAllOfIt) {
  const std::map<std::string, std::string> pages = ManPages(app_, "1.2.3");
  EXPECT_EQ(pages.size(), 1 + CommandsIn(app_).size());
  for (const CLI::App* command : CommandsIn(app_)) {
    const auto page = pages.find("sparsectl-" + command->get_name() + ".1");
    ASSERT_NE(page, pages.end()) << command->get_name();
    EXPECT_THAT(page->second, HasSubstr(".SH NAME\nsparsectl\\-" + command->get_name() + " \\- "));
    for (const CLI::Option* flag : FlagsIn(*command)) {
      const std::string last = NamesOf(*flag).back();
      std::string name;
      for (const char c : last) name += c == '-' ? "\\-" : std::string(1, c);
      EXPECT_THAT(page->second, HasSubstr(name));
    }
  }
  EXPECT_THAT(pages.at("sparsectl-buffers.1"), HasSubstr(".SH \"COMMAND put\""));
  EXPECT_THAT(pages.at("sparsectl-spmm.1"), HasSubstr(".SH \"EXAMPLES\""));
  EXPECT_THAT(pages.at("sparsectl.1"), HasSubstr("sparsed 1.2.3"));
}

}  // namespace
}  // namespace sparsed::cli
