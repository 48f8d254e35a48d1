// Calls a contract that reverts with Nope(7), with viem and ethers, and prints what each makes of the error as JSON.
import { Interface, JsonRpcProvider } from "ethers";
import { BaseError, ContractFunctionRevertedError, createWalletClient, http, parseAbi } from "viem";
import { foundry } from "viem/chains";

const [url, account, contract] = process.argv.slice(2);
const signatures = ["function go()", "error Nope(uint256 code)"];
const told = {};

const wallet = createWalletClient({ chain: foundry, transport: http(url, { timeout: 30_000 }) });
try {
  await wallet.writeContract({ account, address: contract, abi: parseAbi(signatures), functionName: "go" });
} catch (error) {
  const reverted = error instanceof BaseError && error.walk((cause) => cause instanceof ContractFunctionRevertedError);
  told.viem = reverted ? `${reverted.data.errorName}(${reverted.data.args})` : String(error);
}

const provider = new JsonRpcProvider(url);
const abi = new Interface(signatures);
try {
  const call = { from: account, to: contract, data: abi.encodeFunctionData("go") };
  await provider.send("eth_sendTransaction", [call]);
} catch (error) {
  const decoded = abi.parseError(error.error?.data ?? "0x");
  told.ethers = decoded ? `${decoded.name}(${decoded.args})` : String(error);
}
provider.destroy();
console.log(JSON.stringify(told));
