// Encode calls given as JSON: [{signature, args}, …] → ["0x…" or null where ethers rejects it, …].
import { readFileSync } from 'node:fs'
import { Interface } from 'ethers'

const calls = JSON.parse(readFileSync(process.argv[2], 'utf8'))
const encoded = calls.map(({ signature, args }) => {
  try {
    return new Interface([`function ${signature}`]).encodeFunctionData('f', args)
  } catch {
    return null
  }
})
process.stdout.write(JSON.stringify(encoded))
