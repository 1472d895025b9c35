# For a tap: `brew install OWNER/TAP/bitnet`. A release sets the checksum.
class Bitnet < Formula
  desc "Runs BitNet and other ternary language models on the GPU or the CPU"
  homepage "https://github.com/bitnet-wgpu/bitnet-wgpu"
  url "https://github.com/bitnet-wgpu/bitnet-wgpu/archive/refs/tags/v0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on "rust" => :build

  on_linux do
    depends_on "vulkan-loader"
  end

  def install
    system "cargo", "install", *std_cargo_args(path: "cli")
    generate_completions_from_executable(bin/"bitnet", "completions", shells: [:bash, :zsh, :fish])
    man1.mkpath
    system bin/"bitnet", "man", man1
    pkgshare.install "assets/tales-22m"
  end

  test do
    output = shell_output("#{bin}/bitnet run #{pkgshare}/tales-22m 'Once upon a time' --cpu --max-tokens 5")
    assert_match "Once upon a time", output
  end
end
