// Sends COUNT transfers at once with ethers, then waits for each of them. Prints their hashes as JSON.
import { FetchRequest, JsonRpcProvider } from "ethers";

const [url, from, to, count] = process.argv.slice(2);
// On a busy machine the last of them waits longer for its nonce than /rpc waits by default.
const patient = new FetchRequest(url);
patient.setHeader("Prefer", "wait=60");
patient.timeout = 120_000;
const provider = new JsonRpcProvider(patient, undefined, { pollingInterval: 200 });
const signer = await provider.getSigner(from);
const sends = Array.from({ length: Number(count) }, (_, i) => signer.sendTransaction({ to, value: BigInt(i + 1) }));
const sent = await Promise.all(sends);
const receipts = await Promise.all(sent.map((tx) => tx.wait(1, 120_000)));
if (receipts.some((receipt) => receipt.status !== 1)) throw new Error("a transaction failed");
console.log(JSON.stringify(sent.map((tx) => tx.hash)));
provider.destroy();
